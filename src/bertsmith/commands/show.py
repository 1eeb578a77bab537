"""A corpus, its masks, a run, the senses of a word, the spans or the buckets of heads as an offline page for people."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from ..artifacts import named, read_json
from ..config import Chance, Config, Count, Whole, parse, plain
from ..console import Screen
from ..corpus.loader import Batches
from ..corpus.store import Corpus
from ..errors import BadInput
from ..evaluation.word_senses.page import page as senses
from ..objectives import ObjectiveConfig, Pairs
from ..pretraining.setup import Length
from ..reports.corpus import data
from ..reports.finetuning import answers
from ..reports.html import Html, document, write
from ..reports.masking import masks
from ..reports.mixer_stats import BucketLayer as Bucketed
from ..reports.mixer_stats import SpanLayer, buckets, spans
from ..reports.training_curves import curves, results

Kind = Literal["masks", "curves", "corpus", "run", "senses", "spans", "buckets"]
KINDS = get_args(Kind)
NEEDS = {"masks": ("corpus",), "curves": ("model",), "corpus": ("corpus",), "run": ("corpus", "model"),
         "senses": ("data",), "spans": ("model",), "buckets": ("model", "corpus")}  # fmt: skip
TAKES = {"masks": ("objective", "length", "samples", "seed", "epoch", "held_out"), "curves": ("corpus",), "corpus": (),
         "run": ("samples", "epoch", "texts"), "senses": ("model", "models", "word", "points", "skip_bad"),
         "spans": (), "buckets": ()}  # fmt: skip
BATCH = 16_384  # tokens looked at together
LOOKED = 2048  # tokens whose buckets are looked at, pair by pair


class Recipe(Config, frozen=True):
    """What to show, and the page to write."""

    kind: Annotated[Kind, "what to show; `bertsmith show masks ...` says it too"]
    out: Annotated[str, "the page to write: one HTML file"]
    corpus: Annotated[
        str | None, "masks, corpus, run, buckets: the folder `prepare` made; curves: for the baseline of a run in progress"
    ] = None
    model: Annotated[str | None, "curves, run, senses, spans, buckets: a checkpoint; curves also while it is being trained"] = (
        None
    )
    objective: Annotated[ObjectiveConfig, "masks: as `pretrain` takes it"] = Pairs()
    length: Annotated[Length, "masks: longest sequence"] = 128
    samples: Annotated[Count, "masks, run: samples to show"] = 12
    seed: Annotated[int, "masks: as `pretrain` takes it"] = 0
    epoch: Annotated[Whole, "masks, run: of which epoch, from 0"] = 0
    held_out: Annotated[Chance, "masks: as `pretrain` takes it, so that samples are those it reads"] = 0.01
    texts: Annotated[tuple[str, ...], "run: texts with a [MASK] for the model to fill"] = ()
    models: Annotated[tuple[str, ...], "senses: several checkpoints side by side, vectors of words among them"] = ()
    data: Annotated[
        str | None, "senses: a table of sentences (text, position or [[word]], sense), or a folder of CoarseWSD-20"
    ] = None
    word: Annotated[str | None, "senses: the word; without one, all that a folder of folders holds, in tables alone"] = None
    points: Annotated[Count, "senses: occurrences drawn, evenly from all"] = 150
    skip_bad: Annotated[bool, "senses: leave out rows of a table that are broken or lack the word, and say how many"] = False


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Writes the page; a key that the kind has no use for is refused."""
    _check(recipe)
    out = named(recipe.out, "out")
    screen, told = Screen(quiet), dict[str, Any]()
    if recipe.kind == "senses":
        models = [*([recipe.model] if recipe.model else []), *recipe.models]
        title, sections, told = senses(models, str(recipe.data), recipe.word, recipe.points, recipe.skip_bad, screen)
    else:
        pages = {"masks": _masks, "curves": _curves, "corpus": _corpus, "run": life, "spans": _spans}
        pages |= {"buckets": _buckets}
        title, sections = pages[recipe.kind](recipe)
    places = (recipe.model, *recipe.models, recipe.corpus, recipe.data)
    write(out, document(title, " · ".join(str(Path(place)) for place in places if place), sections))
    screen.say(f"{out} is written; open it in a browser")
    return {"out": str(out), "kind": recipe.kind, "bytes": out.stat().st_size, **told}


def _check(recipe: Recipe) -> None:
    for name in NEEDS[recipe.kind]:
        if getattr(recipe, name) is None:
            raise BadInput(f"show {recipe.kind} needs {name}={'FILE' if name == 'data' else 'FOLDER'}")
    fresh = Recipe(kind=recipe.kind, out=recipe.out)
    taken = ("kind", "out", *NEEDS[recipe.kind], *TAKES[recipe.kind])
    for name in recipe.__struct_fields__:
        if name not in taken and getattr(recipe, name) != getattr(fresh, name):
            raise BadInput(f"show {recipe.kind} has no use for {name}; it takes {', '.join(taken[1:])}")


def _masks(recipe: Recipe) -> tuple[str, list[Html]]:
    if not recipe.objective.hides:
        raise BadInput(f"objective={recipe.objective.__struct_config__.tag} hides no words: there are no masks to show; "
                       "`bertsmith show corpus` shows its text")  # fmt: skip
    corpus = _opened(recipe)
    return "What the model is shown", [masks(corpus, _reading(recipe, corpus), recipe.samples, recipe.epoch)]


def _curves(recipe: Recipe) -> tuple[str, list[Html]]:
    baseline = _opened(recipe).card["unigram entropy"] if recipe.corpus else None
    return "How the run goes", [curves(_trained(recipe), baseline)]


def _corpus(recipe: Recipe) -> tuple[str, list[Html]]:
    return "What the corpus holds", [data(_opened(recipe))]


def _spans(recipe: Recipe) -> tuple[str, list[Html]]:
    from ..model import checkpoint
    from ..model.mixers.adaptive_span import AdaptiveAttention

    model, _, _ = checkpoint.load(_trained(recipe))
    mixers = [mixer for mixer in model.encoder.stack.mixers if isinstance(mixer, AdaptiveAttention)]
    if not mixers:
        raise BadInput(f"{recipe.model} learned no spans; a model of mixer=adaptive does, such as model=adaptive-span")
    for mixer in mixers:
        mixer.ready()
    config = mixers[0].config
    layers = [SpanLayer(mixer.spans.tolist(), mixer.reach) for mixer in mixers]
    return "How far its heads look", [spans(layers, config.longest, config.ramp, config.causal)]


def _buckets(recipe: Recipe) -> tuple[str, list[Html]]:
    import torch

    from ..model import checkpoint
    from ..model.batch import Inputs
    from ..model.mixers.reformer.bucket_stats import census
    from ..model.packing import Layout

    model, _, _ = checkpoint.load(_trained(recipe))
    some = _opened(recipe).tokens[: min(LOOKED, model.config.encoder.positions)]
    tokens = torch.from_numpy(some.astype("int64"))
    found = census(model, Inputs(tokens, Layout.of([len(tokens)])))
    if not found:
        raise BadInput(f"{recipe.model} has no buckets; a model of mixer=hashed does, such as model=reformer-mini")
    return "Whom its hashes bring together", [buckets([Bucketed(*layer) for layer in found], len(tokens))]


def life(recipe: Recipe) -> tuple[str, list[Html]]:
    """All of it on one page, the samples as this very model was shown them."""
    from ..inference.predictor import load

    folder, corpus = _trained(recipe), _opened(recipe)
    predictor = load(folder)
    filled = [(text, predictor.fill(text)) for text in recipe.texts]
    sections = [results(folder), *([answers(filled)] if filled else []), curves(folder)]
    taught = _as_trained(recipe, folder)
    if taught.objective.hides:
        sections.append(masks(corpus, _reading(taught, corpus), recipe.samples, recipe.epoch))
    return "A run, from text to answers", [*sections, data(corpus)]


def _as_trained(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the objective, length and seed that the folder says it was trained with."""
    told = read_json(folder / "config.json").get("recipe", {})
    taken = {name: told[name] for name in ("objective", "seed", "held_out") if name in told}
    if told.get("valid"):
        taken["held_out"] = 0.0  # nothing was
    if told.get("length"):
        taken["length"] = told["length"][0]
    return parse(Recipe, {**plain(recipe), **taken}, str(folder / "config.json"))


def _opened(recipe: Recipe) -> Corpus:
    return Corpus.open(named(recipe.corpus or "", "corpus"))


def _trained(recipe: Recipe) -> Path:
    return named(recipe.model or "", "model")


def _reading(recipe: Recipe, corpus: Corpus) -> Batches:
    documents, _ = corpus.split(recipe.held_out, recipe.seed, recipe.objective.least)  # as `pretrain` holds out
    return recipe.objective.batches(corpus, documents, recipe.length, max(BATCH, recipe.length), recipe.seed)
