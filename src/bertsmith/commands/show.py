"""`bertsmith show`: pictures of a corpus, its masks, a run, word senses, and of what a model attends to and answers by.

Each kind is sections of text, tables and charts: an HTML page has them all, an SVG or PNG file has the charts, and a notebook
shows the page. The kinds of `WITHOUT_TORCH` need no torch. The others, and `Recipe`, are in `show_pages`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..artifacts import resolve_path
from ..console import Console
from ..corpus.store import Corpus
from ..errors import UserError
from ..reports.charts import check_png, to_png
from ..reports.corpus import render_corpus
from ..reports.html import Section, is_page, render_document, render_picture, write_page
from ..reports.tokenization import render_tokenization, tokenize
from ..reports.training_curves import render_curves
from ..tokenization.tokenizer import Tokenizer
from ..writing import check_output_file, lock_output, resolve_output

if TYPE_CHECKING:
    from .show_pages import Recipe

Kind = Literal["masks", "curves", "corpus", "run", "senses", "attention", "attribution", "spans", "buckets", "positions",
               "head-importance", "tokenization"]  # fmt: skip
KINDS = get_args(Kind)
REQUIRED_KEYS = {"masks": ("corpus",), "curves": ("model",), "corpus": ("corpus",), "run": ("corpus", "model"),
         "senses": ("data",), "attention": ("model", "texts"), "attribution": ("model", "texts"), "spans": ("model",),
         "buckets": ("model", "corpus"), "positions": ("model",), "head-importance": ("model", "data"),
         "tokenization": ("tokenizer", "texts")}  # fmt: skip
OPTIONAL_KEYS = {"masks": ("objective", "max_length", "samples", "seed", "epoch", "validation_split"),
         "curves": ("corpus",), "run": ("samples", "epoch", "texts"),
         "senses": ("model", "models", "word", "points", "skip_bad"), "attribution": ("target",)}  # fmt: skip
WITHOUT_TORCH = ("corpus", "curves", "tokenization")
FORMATS = (".html", ".svg", ".png")


class Page(NamedTuple):
    """What a kind of `show` makes of a recipe."""

    title: str
    sections: list[Section]
    numbers: dict[str, Any] = {}  # of the result, behind --json  # noqa: RUF012


def __getattr__(name: str) -> Any:
    """`Recipe`, imported on first use: its key `objective` is defined with torch."""
    if name != "Recipe":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .show_pages import Recipe

    return Recipe


def recipe_type(checked: "Recipe") -> "type[Recipe]":
    """The struct of the schema, which `checked` is of, for pages without torch; `Recipe` for the others."""
    if checked.kind in WITHOUT_TORCH:
        return type(checked)
    from .show_pages import Recipe

    return Recipe


def run(recipe: "Recipe", quiet: bool = False) -> dict[str, Any]:
    """Write the page or picture; a key that this kind does not take is an error."""
    _check_keys(recipe)
    if recipe.out is None:
        raise UserError(f"show {recipe.kind} needs out=FILE.html, or .svg or .png")
    return call(recipe, quiet)


def call(recipe: "Recipe", quiet: bool = False) -> dict[str, Any]:
    """`run`; without `out`, the result has the page as `page`."""
    _check_keys(recipe)
    sources = (recipe.model, *recipe.models, recipe.corpus, recipe.data, recipe.tokenizer)
    subtitle = " · ".join(str(Path(source)) for source in sources if source)
    out = None
    if recipe.out is not None:
        out = check_output_file(resolve_output(recipe.out), *sources, overwrite=recipe.overwrite, is_ours=is_page)
        if out.suffix not in FORMATS:
            raise UserError(f"out={recipe.out} is of no known kind; give a name that ends in {', '.join(FORMATS)}")
        if out.suffix == ".png":
            check_png()
    console = Console(quiet)
    page = _find_builder(recipe)(recipe, console)
    if out is None:
        return {"kind": recipe.kind, "page": render_document(page.title, subtitle, page.sections).decode(), **page.numbers}
    if out.suffix == ".html":
        data = render_document(page.title, subtitle, page.sections)
    else:
        picture = render_picture(page.title, page.sections)
        data = to_png(picture) if out.suffix == ".png" else picture
    with lock_output(out):
        write_page(out, data)
    console.info(f"wrote {out}")
    return {"out": str(out), "kind": recipe.kind, "bytes": out.stat().st_size, **page.numbers}


def _find_builder(recipe: "Recipe") -> Callable[["Recipe", Console], Page]:
    builders = {"corpus": _corpus_page, "curves": _curves_page, "tokenization": _tokenization_page}
    if recipe.kind in builders:
        return builders[recipe.kind]
    from . import show_pages

    return show_pages.BUILDERS[recipe.kind]


def _check_keys(recipe: "Recipe") -> None:
    for name in REQUIRED_KEYS[recipe.kind]:
        if not getattr(recipe, name):
            example = {"data": "FILE", "texts": "TEXT"}.get(name, "FOLDER")
            raise UserError(f"show {recipe.kind} needs {name}={example}")
    defaults = type(recipe)(kind=recipe.kind)
    allowed = ("kind", "out", "overwrite", *REQUIRED_KEYS[recipe.kind], *OPTIONAL_KEYS.get(recipe.kind, ()))
    for name in recipe.__struct_fields__:
        if name not in allowed and getattr(recipe, name) != getattr(defaults, name):
            raise UserError(f"show {recipe.kind} does not take {name}; its keys are {', '.join(allowed[1:])}")


def _curves_page(recipe: "Recipe", console: Console) -> Page:
    baseline = open_corpus(recipe).card["unigram_entropy"] if recipe.corpus else None
    return Page("Training curves", [render_curves(model_folder(recipe), baseline)])


def _corpus_page(recipe: "Recipe", console: Console) -> Page:
    return Page("Corpus statistics", [render_corpus(open_corpus(recipe))])


def _tokenization_page(recipe: "Recipe", console: Console) -> Page:
    """With the pieces of each text in the result."""
    tokenizer = Tokenizer.load(resolve_path(recipe.tokenizer or "", "tokenizer"))
    texts = tokenize(tokenizer, recipe.texts)
    pieces = [{"tokens": text.tokens, "ids": text.ids, "words": text.num_words} for text in texts]
    return Page("Tokenization", render_tokenization(tokenizer, texts), {"texts": pieces})


def open_corpus(recipe: "Recipe") -> Corpus:
    return Corpus.open(resolve_path(recipe.corpus or "", "corpus"))


def model_folder(recipe: "Recipe") -> Path:
    return resolve_path(recipe.model or "", "model")
