"""`bertsmith show`: HTML pages of a corpus, its masks, training curves, word senses, attention weights or spans, LSH buckets.

The pages of a corpus and of training curves need no torch. The others, and `Recipe`, are in `show_pages`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..artifacts import resolve_path
from ..console import Console
from ..corpus.store import Corpus
from ..errors import UserError
from ..reports.corpus import render_corpus
from ..reports.html import Section, is_page, render_document, write_page
from ..reports.training_curves import render_curves
from ..writing import check_output_file, lock_output, resolve_output

if TYPE_CHECKING:
    from .show_pages import Recipe

Kind = Literal["masks", "curves", "corpus", "run", "senses", "attention", "spans", "buckets"]
KINDS = get_args(Kind)
REQUIRED_KEYS = {"masks": ("corpus",), "curves": ("model",), "corpus": ("corpus",), "run": ("corpus", "model"),
         "senses": ("data",), "attention": ("model", "texts"), "spans": ("model",), "buckets": ("model", "corpus")}  # fmt: skip
OPTIONAL_KEYS = {"masks": ("objective", "max_length", "samples", "seed", "epoch", "validation_split"),
         "curves": ("corpus",), "corpus": (), "run": ("samples", "epoch", "texts"),
         "senses": ("model", "models", "word", "points", "skip_bad"),
         "attention": (), "spans": (), "buckets": ()}  # fmt: skip
WITHOUT_TORCH = ("corpus", "curves")


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
    """Write the page; a key that this kind does not take is an error."""
    _check_keys(recipe)
    sources = (recipe.model, *recipe.models, recipe.corpus, recipe.data)
    out = check_output_file(resolve_output(recipe.out), *sources, overwrite=recipe.overwrite, is_ours=is_page)
    console, result = Console(quiet), dict[str, Any]()
    if recipe.kind == "corpus":
        title, sections = _corpus_page(recipe)
    elif recipe.kind == "curves":
        title, sections = _curves_page(recipe)
    else:
        from . import show_pages as pages

        with_numbers = {"spans": pages.spans_page, "buckets": pages.buckets_page}
        if recipe.kind == "senses":
            title, sections, result = pages.senses_page(recipe, console)
        elif recipe.kind in with_numbers:
            title, sections, result = with_numbers[recipe.kind](recipe)
        else:
            render = {"masks": pages.masking_page, "run": pages.run_page, "attention": pages.attention_page}
            title, sections = render[recipe.kind](recipe)
    with lock_output(out):
        write_page(out, render_document(title, " · ".join(str(Path(source)) for source in sources if source), sections))
    console.info(f"wrote {out}")
    return {"out": str(out), "kind": recipe.kind, "bytes": out.stat().st_size, **result}


def _check_keys(recipe: "Recipe") -> None:
    for name in REQUIRED_KEYS[recipe.kind]:
        if not getattr(recipe, name):
            example = {"data": "FILE", "texts": "TEXT"}.get(name, "FOLDER")
            raise UserError(f"show {recipe.kind} needs {name}={example}")
    defaults = type(recipe)(kind=recipe.kind, out=recipe.out)
    allowed = ("kind", "out", "overwrite", *REQUIRED_KEYS[recipe.kind], *OPTIONAL_KEYS[recipe.kind])
    for name in recipe.__struct_fields__:
        if name not in allowed and getattr(recipe, name) != getattr(defaults, name):
            raise UserError(f"show {recipe.kind} does not take {name}; its keys are {', '.join(allowed[1:])}")


def _curves_page(recipe: "Recipe") -> tuple[str, list[Section]]:
    baseline = open_corpus(recipe).card["unigram_entropy"] if recipe.corpus else None
    return "Training curves", [render_curves(model_folder(recipe), baseline)]


def _corpus_page(recipe: "Recipe") -> tuple[str, list[Section]]:
    return "Corpus statistics", [render_corpus(open_corpus(recipe))]


def open_corpus(recipe: "Recipe") -> Corpus:
    return Corpus.open(resolve_path(recipe.corpus or "", "corpus"))


def model_folder(recipe: "Recipe") -> Path:
    return resolve_path(recipe.model or "", "model")
