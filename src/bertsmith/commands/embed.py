"""`bertsmith embed`: sentence embeddings of texts or files, semantic search over documents, and queries of word vectors."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..artifacts import resolve_path
from ..config import Config, PosInt
from ..console import Console
from ..errors import UserError
from ..inference import output_files
from ..inference.predictor import Predictor, load
from ..inference.runtime import Precision
from ..tasks.requests import read_valid_texts
from ..tasks.similarity import Pooling, semantic_search, to_hits
from ..word_vectors.models import load_vectors
from ..word_vectors.queries import run_queries

CHUNK_SIZE = 4096  # texts that are held in memory and sorted by length together


class Recipe(Config, frozen=True):
    """A model, the texts or words to embed, and what to do with the vectors."""

    model: Annotated[str, "checkpoint folder (fine-tuned, pre-trained or imported); for words also a vector file"]
    text: Annotated[str | None, "a text to embed"] = None
    data: Annotated[str | None, "file of texts: .txt with one per line, or the column `text` of .tsv, .csv, .jsonl"] = None
    columns: Annotated[dict[str, str], "column names: { text = NAME }"] = msgspec.field(default_factory=dict)
    out: Annotated[str | None, "output file: .npy with one row per text; with documents, .jsonl of the hits"] = None
    pooling: Annotated[Pooling | None, "pooling of token vectors: mean or cls; default: the model's own, else mean"] = None
    documents: Annotated[str | None, "documents to search for each text: a .npy of vectors, or a file of texts"] = None
    top_k: Annotated[PosInt, "number of results per query (documents, word, analogy)"] = 5
    word: Annotated[str | None, "a word: print its nearest neighbours in the token embeddings"] = None
    analogy: Annotated[tuple[str, ...], "three words a, b, c: solve a : b = c : ?"] = ()
    similarity: Annotated[tuple[str, ...], "files of rated word pairs (WordSim-353, SimLex-999): Spearman correlation"] = ()
    analogies: Annotated[tuple[str, ...], "files of analogies (Google's questions-words.txt): accuracy by section"] = ()
    fold: Annotated[bool, "similarity, analogies: ignore case; the first row of a word counts"] = True
    batch_tokens: Annotated[PosInt | None, "tokens per batch; default: chosen for the device"] = None
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, fp32 on a CPU"] = "auto"


class DocumentIndex(NamedTuple):
    """Documents to search, vectors (documents, hidden_size): memory-mapped from a file, or in memory with their texts."""

    vectors: NDArray[Any]
    texts: list[str] | None = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Embed texts, search documents or query words; an interrupted output file is resumed by the same command."""
    if recipe.word is not None or recipe.analogy or recipe.similarity or recipe.analogies:
        return _query_words(recipe, Console(quiet))
    if (recipe.text is None) == (recipe.data is None):
        raise UserError("give text=... or data=FILE, one of the two; or of words: word, analogy, similarity, analogies")
    out = (
        output_files.check_output_file(resolve_path(recipe.out, "out"), recipe.data, recipe.documents)
        if recipe.out is not None
        else None
    )
    if recipe.documents is None and out is not None and out.suffix != ".npy":
        raise UserError(f"out={out}: vectors are written as .npy; give such a name")
    if recipe.documents is None and out is None and recipe.data is not None:
        raise UserError("the vectors of a file are too many for a terminal; give out=vectors.npy")
    console, predictor = Console(quiet), load(recipe.model, recipe.device, recipe.precision)
    if recipe.documents is not None:
        return _search_documents(recipe, predictor, out, console)
    num_texts, hidden_size = _count_texts(recipe), predictor.model.config.encoder.hidden_size
    if out is None:
        sys.stdout.write(json.dumps(_embed(recipe, predictor, [str(recipe.text)])[0].tolist()) + "\n")
    else:
        _write_vectors(recipe, predictor, out, (num_texts, hidden_size), console)
    return {
        "model": recipe.model,
        "rows": num_texts,
        "width": hidden_size,
        "pool": recipe.pooling or predictor.pool,
        "out": recipe.out,
    }


def _query_words(recipe: Recipe, console: Console) -> dict[str, Any]:
    """Nearest words, analogies and benchmark scores, from the token embeddings alone."""
    if wrong := [name for name in ("text", "data", "documents", "out", "pooling") if getattr(recipe, name) is not None]:
        raise UserError(
            f"{wrong[0]} is for texts, and word, analogy, similarity and analogies for words; ask for one or the other"
        )
    similarity_files, analogy_files = (
        [resolve_path(file, key) for file in getattr(recipe, key)] for key in ("similarity", "analogies")
    )
    vectors = load_vectors(resolve_path(recipe.model, "model"))
    results = run_queries(
        vectors, recipe.word, recipe.analogy, similarity_files, analogy_files, recipe.top_k, recipe.fold, console
    )
    return {"model": recipe.model, **results}


def _write_vectors(recipe: Recipe, predictor: Predictor, out: Path, shape: tuple[int, int], console: Console) -> None:
    with (
        output_files.open_array_output(out, output_files.compute_run_id(recipe, recipe.model, recipe.data), shape) as output,
        console.progress_bar("texts") as bar,
    ):
        if num_done := output.num_done:
            console.info(f"{out}: going on after {num_done:,} texts")
        for texts in _iter_chunks(recipe, num_done):
            output.array[num_done : num_done + len(texts)] = _embed(recipe, predictor, texts)
            output.record_progress(num_done := num_done + len(texts))
            bar(num_done, shape[0])
    console.info(f"{shape[0]:,} vectors of {shape[1]:,} numbers in {out}")


def _search_documents(recipe: Recipe, predictor: Predictor, out: Path | None, console: Console) -> dict[str, Any]:
    index, num_answers = _load_documents(recipe, predictor), 0
    if out is None:
        for texts in _iter_chunks(recipe, 0):
            sys.stdout.writelines(line.decode() for line in _nearest_lines(recipe, predictor, texts, index))
            num_answers += len(texts)
    else:
        with output_files.open_line_output(
            out, output_files.compute_run_id(recipe, recipe.model, recipe.data, recipe.documents)
        ) as (
            file,
            num_written,
        ):
            num_answers = num_written - num_written % CHUNK_SIZE
            for texts in _iter_chunks(recipe, num_answers):
                file.writelines(_nearest_lines(recipe, predictor, texts, index)[max(0, num_written - num_answers) :])
                file.flush()
                num_answers += len(texts)
        console.info(f"{num_answers:,} answers in {out}")
    return {"model": recipe.model, "answers": num_answers, "documents": len(index.vectors), "out": recipe.out}


def _nearest_lines(recipe: Recipe, predictor: Predictor, texts: list[str], index: DocumentIndex) -> list[bytes]:
    hits = to_hits(*semantic_search(_embed(recipe, predictor, texts), index.vectors, recipe.top_k), index.texts)
    return [(json.dumps({"nearest": text_hits}, ensure_ascii=False) + "\n").encode("utf-8", "replace") for text_hits in hits]


def _load_documents(recipe: Recipe, predictor: Predictor) -> DocumentIndex:
    path = resolve_path(str(recipe.documents), "documents")
    if path.suffix == ".npy":
        return DocumentIndex(_map_vectors(path, predictor.model.config.encoder.hidden_size))
    texts = list(read_valid_texts(path, recipe.columns))
    return DocumentIndex(_embed(recipe, predictor, texts), texts)


def _map_vectors(path: Path, hidden_size: int) -> NDArray[Any]:
    try:
        vectors = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"documents={path} cannot be read as .npy: {error}; `bertsmith embed` makes one") from None
    if vectors.ndim != 2 or vectors.shape[1] != hidden_size:
        raise UserError(
            f"documents={path} holds {vectors.shape}, where this model's vectors are {hidden_size} wide; embed it again"
        )
    return vectors


def _embed(recipe: Recipe, predictor: Predictor, texts: list[str]) -> NDArray[np.float32]:
    return predictor.embed(texts, recipe.pooling, recipe.batch_tokens)


def _iter_chunks(recipe: Recipe, skip: int) -> Iterator[list[str]]:
    texts = islice(_iter_texts(recipe), skip, None)
    while chunk := list(islice(texts, CHUNK_SIZE)):
        yield chunk


def _iter_texts(recipe: Recipe) -> Iterator[str]:
    return (
        iter([recipe.text])
        if recipe.text is not None
        else read_valid_texts(resolve_path(str(recipe.data), "data"), recipe.columns)
    )


def _count_texts(recipe: Recipe) -> int:
    return sum(1 for _ in _iter_texts(recipe))
