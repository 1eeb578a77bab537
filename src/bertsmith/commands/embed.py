"""Texts, or a file of any size, to a vector each; or to those documents whose vectors are nearest; words, to theirs."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..artifacts import named
from ..config import Config, Count
from ..console import Screen
from ..errors import BadInput
from ..inference import output_files
from ..inference.predictor import Predictor, load
from ..inference.runtime import Precision
from ..tasks.requests import texts_of
from ..tasks.similarity import Pool, listed, nearest
from ..word_vectors.models import vectors_of
from ..word_vectors.queries import told

AT_ONCE = 4096  # texts: sorted by length among themselves, and all that is held in memory


class Recipe(Config, frozen=True):
    model: Annotated[str, "any checkpoint folder, fine-tuned, pre-trained or imported; for words, a file of vectors too"]
    text: Annotated[str | None, "one text"] = None
    data: Annotated[str | None, "a file of texts: .txt with one a line, or `text` of .tsv, .csv, .jsonl"] = None
    columns: Annotated[dict[str, str], "what text is called in the files"] = msgspec.field(default_factory=dict)
    out: Annotated[str | None, "a .npy file for the vectors, a row a text; or with documents a .jsonl for what is found"] = None
    pool: Annotated[Pool | None, "mean of a text's tokens, or the first; as the model was taught, mean if it was not"] = None
    documents: Annotated[str | None, "a .npy of vectors, or a file of texts: find in it what is nearest to each text"] = None
    top: Annotated[Count, "documents, word, analogy: how many are found for each"] = 5
    word: Annotated[str | None, "a word: those nearest to it in the table of token vectors"] = None
    analogy: Annotated[tuple[str, ...], "three words: the first is to the second as the third is to what?"] = ()
    similarity: Annotated[tuple[str, ...], "files of word pairs that people rated (WordSim-353, SimLex-999): Spearman"] = ()
    analogies: Annotated[tuple[str, ...], "files of analogies as Google's questions-words.txt: accuracy by section"] = ()
    fold: Annotated[bool, "similarity, analogies: case makes no difference, the earliest row of a word counts"] = True
    batch_tokens: Annotated[Count | None, "tokens of one batch; what suits the device, if nothing is said"] = None
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, fp32 on a CPU"] = "auto"


class Shelf(NamedTuple):
    """Documents to be searched: vectors mapped from their file, or texts with their vectors, all in memory."""

    vectors: NDArray[Any]
    texts: list[str] | None = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Files go on where a killed run of the same command left them, and have their names when they are whole."""
    if recipe.word is not None or recipe.analogy or recipe.similarity or recipe.analogies:
        return _asked(recipe, Screen(quiet))
    if (recipe.text is None) == (recipe.data is None):
        raise BadInput("give text=... or data=FILE, one of the two; or of words: word, analogy, similarity, analogies")
    out = output_files.writable(named(recipe.out, "out"), recipe.data, recipe.documents) if recipe.out is not None else None
    if recipe.documents is None and out is not None and out.suffix != ".npy":
        raise BadInput(f"out={out}: vectors are written as .npy; give such a name")
    if recipe.documents is None and out is None and recipe.data is not None:
        raise BadInput("the vectors of a file are too many for a terminal; give out=vectors.npy")
    screen, predictor = Screen(quiet), load(recipe.model, recipe.device, recipe.precision)
    if recipe.documents is not None:
        return _searched(recipe, predictor, out, screen)
    rows, width = _counted(recipe), predictor.model.config.encoder.width
    if out is None:
        sys.stdout.write(json.dumps(_vectors(recipe, predictor, [str(recipe.text)])[0].tolist()) + "\n")
    else:
        _filed(recipe, predictor, out, (rows, width), screen)
    return {"model": recipe.model, "rows": rows, "width": width, "pool": recipe.pool or predictor.pool, "out": recipe.out}


def _asked(recipe: Recipe, screen: Screen) -> dict[str, Any]:
    """Of words rather than texts: the token table alone answers."""
    if wrong := [name for name in ("text", "data", "documents", "out", "pool") if getattr(recipe, name) is not None]:
        raise BadInput(
            f"{wrong[0]} is for texts, and word, analogy, similarity and analogies for words; ask for one or the other"
        )
    likeness, questions = ([named(one, key) for one in getattr(recipe, key)] for key in ("similarity", "analogies"))
    vectors = vectors_of(named(recipe.model, "model"))
    found = told(vectors, recipe.word, recipe.analogy, likeness, questions, recipe.top, recipe.fold, screen)
    return {"model": recipe.model, **found}


def _filed(recipe: Recipe, predictor: Predictor, out: Path, shape: tuple[int, int], screen: Screen) -> None:
    with (
        output_files.rows(out, output_files.identity(recipe, recipe.model, recipe.data), shape) as made,
        screen.bar("texts") as bar,
    ):
        if at := made.done:
            screen.say(f"{out}: going on after {at:,} texts")
        for some in _some(recipe, at):
            made.array[at : at + len(some)] = _vectors(recipe, predictor, some)
            made.mark(at := at + len(some))
            bar(at, shape[0])
    screen.say(f"{shape[0]:,} vectors of {shape[1]:,} numbers in {out}")


def _searched(recipe: Recipe, predictor: Predictor, out: Path | None, screen: Screen) -> dict[str, Any]:
    shelf, count = _shelf(recipe, predictor), 0
    if out is None:
        for some in _some(recipe, 0):
            sys.stdout.writelines(line.decode() for line in _found(recipe, predictor, some, shelf))
            count += len(some)
    else:
        with output_files.lines(out, output_files.identity(recipe, recipe.model, recipe.data, recipe.documents)) as (
            file,
            done,
        ):
            count = done - done % AT_ONCE
            for some in _some(recipe, count):
                file.writelines(_found(recipe, predictor, some, shelf)[max(0, done - count) :])
                file.flush()
                count += len(some)
        screen.say(f"{count:,} answers in {out}")
    return {"model": recipe.model, "answers": count, "documents": len(shelf.vectors), "out": recipe.out}


def _found(recipe: Recipe, predictor: Predictor, some: list[str], shelf: Shelf) -> list[bytes]:
    found = listed(*nearest(_vectors(recipe, predictor, some), shelf.vectors, recipe.top), shelf.texts)
    return [(json.dumps({"nearest": one}, ensure_ascii=False) + "\n").encode("utf-8", "replace") for one in found]


def _shelf(recipe: Recipe, predictor: Predictor) -> Shelf:
    path = named(str(recipe.documents), "documents")
    if path.suffix == ".npy":
        return Shelf(_mapped(path, predictor.model.config.encoder.width))
    texts = list(texts_of(path, recipe.columns))
    return Shelf(_vectors(recipe, predictor, texts), texts)


def _mapped(path: Path, width: int) -> NDArray[Any]:
    try:
        vectors = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise BadInput(f"documents={path} cannot be read as .npy: {error}; `bertsmith embed` makes one") from None
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise BadInput(f"documents={path} holds {vectors.shape}, where this model's vectors are {width} wide; embed it again")
    return vectors


def _vectors(recipe: Recipe, predictor: Predictor, some: list[str]) -> NDArray[np.float32]:
    return predictor.embed(some, recipe.pool, recipe.batch_tokens)


def _some(recipe: Recipe, skip: int) -> Iterator[list[str]]:
    rows = islice(_texts(recipe), skip, None)
    while some := list(islice(rows, AT_ONCE)):
        yield some


def _texts(recipe: Recipe) -> Iterator[str]:
    return iter([recipe.text]) if recipe.text is not None else texts_of(named(str(recipe.data), "data"), recipe.columns)


def _counted(recipe: Recipe) -> int:
    return sum(1 for _ in _texts(recipe))
