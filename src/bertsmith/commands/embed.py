"""`bertsmith embed`: sentence embeddings of texts or files, semantic search over documents, and queries of word vectors."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..artifacts import resolve_path
from ..config import Config, PosInt
from ..console import Console, print_result
from ..errors import UserError
from ..inference import output_files
from ..inference.engines.base import Backend, Precision
from ..inference.predictor import Predictor, load
from ..reading.arrays import open_npy
from ..tasks.requests import TextRow, raise_bad_rows, read_valid_texts
from ..tasks.similarity import Pooling, semantic_search, to_hits
from ..tasks.standard_input import is_standard_input, iter_available, open_standard_input, read_input_texts
from ..writing import resolve_output

CHUNK_SIZE = 4096  # texts that are held in memory and sorted by length together


class Recipe(Config, frozen=True):
    """A model, the texts or words to embed, and what to do with the vectors."""

    model: Annotated[str, "checkpoint folder (fine-tuned, pre-trained or imported); for words also a vector file"]
    text: Annotated[str | None, "a text to embed"] = None
    data: Annotated[str | None, "file of texts: .txt with one per line, or the column `text` of a table; -: standard input"] = (
        None
    )
    columns: Annotated[dict[str, str], "column names: { text = NAME }"] = msgspec.field(default_factory=dict)
    encoding: Annotated[str, "encoding of data and documents: utf-8, gb18030, latin-1 ..."] = "utf-8"
    out: Annotated[str | None, "output file: .npy with one row per text; with documents, .jsonl of the hits"] = None
    overwrite: Annotated[bool, "replace an existing out of other inputs or settings; default: refuse"] = False
    pooling: Annotated[Pooling | None, "pooling of token vectors: mean or cls; default: the model's own, else mean"] = None
    prompt_name: Annotated[
        str | None, "prompt put before each text, of a model that has prompts; default: the model's own, of a search query's"
    ] = None
    dimensions: Annotated[
        PosInt | None, "size of the vectors: the first so many components, scaled to L2 norm 1; default: all, as they are"
    ] = None
    documents: Annotated[str | None, "documents to search for each text: a .npy of vectors, or a file of texts"] = None
    top_k: Annotated[PosInt, "number of results per query (documents, word, analogy)"] = 5
    word: Annotated[str | None, "a word: print its nearest neighbours in the token embeddings"] = None
    analogy: Annotated[tuple[str, ...], "three words a, b, c: solve a : b = c : ?"] = ()
    similarity: Annotated[tuple[str, ...], "files of rated word pairs (WordSim-353, SimLex-999): Spearman correlation"] = ()
    analogies: Annotated[tuple[str, ...], "files of analogies (Google's questions-words.txt): accuracy by section"] = ()
    fold: Annotated[bool, "similarity, analogies: ignore case; the first row of a word counts"] = True
    batch_tokens: Annotated[PosInt | None, "tokens per batch; default: chosen for the device"] = None
    backend: Annotated[Backend, "torch, onnx (onnxruntime), openvino, or auto: the fastest that can open the model"] = "auto"
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, and on a CPU with instructions for it; else fp32"] = "auto"


class DocumentIndex(NamedTuple):
    """Documents to search, vectors (documents, hidden_size): memory-mapped from a file, or in memory with their texts."""

    vectors: NDArray[Any]
    texts: list[str] | None = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Embed texts, search documents or query words; an interrupted output file is resumed by the same command."""
    if _is_word_query(recipe):
        return _query_words(recipe, Console(quiet))
    if (recipe.text is None) == (recipe.data is None):
        raise UserError("give text=... or data=FILE, and not both; or query words by word, analogy, similarity or analogies")
    out = (
        output_files.check_output_file(resolve_output(recipe.out), recipe.model, recipe.data, recipe.documents)
        if recipe.out is not None
        else None
    )
    if recipe.documents is None and out is not None and out.suffix != ".npy":
        raise UserError(f"out={out}: vectors are written as .npy; choose out={out.with_suffix('.npy')}")
    if recipe.documents is None and out is None and recipe.data is not None and not is_standard_input(recipe.data):
        raise UserError("vectors of a file are written to a file; give out=vectors.npy")
    console = Console(quiet)
    run_id = output_files.compute_run_id(recipe, recipe.model, recipe.data, recipe.documents) if out else ""
    if out and (finished := output_files.read_finished_result(out, run_id, recipe.overwrite)):
        console.info(f"{out} has the output of this command already")
        return finished | {"out": recipe.out}
    predictor = load(recipe.model, recipe.backend, recipe.precision, recipe.device)
    result = (_embed_texts if recipe.documents is None else _search_documents)(recipe, predictor, out, run_id, console)
    return output_files.record_result(out, result) if out else result


def call(recipe: Recipe, quiet: bool = False) -> Any:
    """What `bertsmith.embed` returns: the vector of a text, an array for a file, or the documents nearest to each.

    With `out`, and for queries of word vectors, the result of `run`.
    """
    if recipe.out is not None or _is_word_query(recipe) or (recipe.text is None) == (recipe.data is None):
        return run(recipe, quiet)
    predictor = load(recipe.model, recipe.backend, recipe.precision, recipe.device)
    if recipe.documents is not None:
        index = _load_documents(recipe, predictor)
        answers = [answer for rows in _iter_chunks(recipe, 0) for answer in _search(recipe, predictor, rows, index)]
        return answers if recipe.data is not None else answers[0]["hits"]
    vectors = np.concatenate([_embed(recipe, predictor, rows, recipe.prompt_name) for rows in _iter_chunks(recipe, 0)])
    return vectors if recipe.data is not None else vectors[0]


def _is_word_query(recipe: Recipe) -> bool:
    return bool(recipe.word is not None or recipe.analogy or recipe.similarity or recipe.analogies)


def _embed_texts(recipe: Recipe, predictor: Predictor, out: Path | None, run_id: str, console: Console) -> dict[str, Any]:
    hidden_size = recipe.dimensions or predictor.embedding_size
    if out is None:
        num_texts = _print_vectors(recipe, predictor)
    elif is_standard_input(recipe.data):
        num_texts = _append_vectors(recipe, predictor, out, run_id, hidden_size, console)
    else:
        num_texts = _count_texts(recipe)
        _write_vectors(recipe, predictor, out, run_id, (num_texts, hidden_size), console)
    return {
        "model": recipe.model,
        "texts": num_texts,
        "hidden_size": hidden_size,
        "pooling": recipe.pooling or predictor.pooling,
        "out": recipe.out,
    }


def _query_words(recipe: Recipe, console: Console) -> dict[str, Any]:
    """Nearest words, analogies and benchmark scores, from the token embeddings alone."""
    text_keys = ("text", "data", "documents", "out", "pooling", "prompt_name", "dimensions")
    if wrong := [name for name in text_keys if getattr(recipe, name) is not None]:
        raise UserError(
            f"{wrong[0]}=... is for texts, and word, analogy, similarity and analogies are for words; leave one of them out"
        )
    similarity_files, analogy_files = (
        [resolve_path(file, key) for file in getattr(recipe, key)] for key in ("similarity", "analogies")
    )
    from ..word_vectors.models import load_vectors
    from ..word_vectors.queries import run_queries

    vectors = load_vectors(resolve_path(recipe.model, "model"))
    results = run_queries(
        vectors, recipe.word, recipe.analogy, similarity_files, analogy_files, recipe.top_k, recipe.fold, console
    )
    return {"model": recipe.model, **results}


def _write_vectors(
    recipe: Recipe, predictor: Predictor, out: Path, run_id: str, shape: tuple[int, int], console: Console
) -> None:
    with (
        output_files.open_array_output(out, run_id, shape) as output,
        console.progress_bar("texts") as bar,
    ):
        if num_done := output.num_done:
            console.info(f"{out}: resuming after {num_done:,} texts")
        for rows in _iter_chunks(recipe, num_done):
            output.array[num_done : num_done + len(rows)] = _embed(recipe, predictor, rows, recipe.prompt_name)
            output.record_progress(num_done := num_done + len(rows))
            bar(num_done, shape[0])
    console.info(f"{shape[0]:,} vectors of size {shape[1]:,} in {out}, computed by {predictor.engine}")


def _print_vectors(recipe: Recipe, predictor: Predictor) -> int:
    """One JSON list per text."""
    num_texts = 0
    for rows in _iter_chunks(recipe, 0):
        print_result(*(json.dumps(vector.tolist()) for vector in _embed(recipe, predictor, rows, recipe.prompt_name)))
        num_texts += len(rows)
    return num_texts


def _append_vectors(recipe: Recipe, predictor: Predictor, out: Path, run_id: str, hidden_size: int, console: Console) -> int:
    num_texts = 0
    with output_files.open_growing_array(out, run_id, hidden_size) as append:
        for rows in _iter_chunks(recipe, 0):
            append(_embed(recipe, predictor, rows, recipe.prompt_name))
            num_texts += len(rows)
    console.info(f"{num_texts:,} vectors of size {hidden_size:,} in {out}, computed by {predictor.engine}")
    return num_texts


def _search_documents(recipe: Recipe, predictor: Predictor, out: Path | None, run_id: str, console: Console) -> dict[str, Any]:
    index, num_answers = _load_documents(recipe, predictor), 0
    if out is None:
        for rows in _iter_chunks(recipe, 0):
            print_result(*(line.decode().rstrip("\n") for line in _hit_lines(recipe, predictor, rows, index)))
            num_answers += len(rows)
    else:
        with output_files.open_line_output(out, run_id) as (file, num_written):
            num_answers = num_written - num_written % CHUNK_SIZE
            for rows in _iter_chunks(recipe, num_answers):
                file.writelines(_hit_lines(recipe, predictor, rows, index)[max(0, num_written - num_answers) :])
                file.flush()
                num_answers += len(rows)
        console.info(f"{num_answers:,} answers in {out}, computed by {predictor.engine}")
    return {"model": recipe.model, "answers": num_answers, "documents": len(index.vectors), "out": recipe.out}


def _hit_lines(recipe: Recipe, predictor: Predictor, rows: list[TextRow], index: DocumentIndex) -> list[bytes]:
    """One JSON line per query."""
    answers = _search(recipe, predictor, rows, index)
    return [(json.dumps(answer, ensure_ascii=False) + "\n").encode("utf-8", "replace") for answer in answers]


def _search(recipe: Recipe, predictor: Predictor, rows: list[TextRow], index: DocumentIndex) -> list[dict[str, Any]]:
    """For each query its id or text, and its `hits`, best first."""
    queries = _embed(recipe, predictor, rows, recipe.prompt_name or predictor.search_prompts[0])
    hits = to_hits(*semantic_search(queries, index.vectors, recipe.top_k), index.texts)
    return [row.key() | {"hits": row_hits} for row, row_hits in zip(rows, hits, strict=True)]


def _load_documents(recipe: Recipe, predictor: Predictor) -> DocumentIndex:
    path = resolve_path(str(recipe.documents), "documents")
    if path.suffix == ".npy":
        return DocumentIndex(_map_vectors(path, recipe.dimensions or predictor.embedding_size))
    rows = list(read_valid_texts(path, recipe.columns, recipe.encoding))
    vectors = _embed(recipe, predictor, rows, predictor.search_prompts[1])
    return DocumentIndex(vectors, [row.text for row in rows])


def _map_vectors(path: Path, hidden_size: int) -> NDArray[Any]:
    vectors = open_npy(path)
    if vectors.ndim != 2 or vectors.shape[1] != hidden_size:
        raise UserError(
            f"documents={path} has shape {vectors.shape}, but this model's vectors have size {hidden_size}; "
            "embed the documents again with this model"
        )
    return vectors


def _embed(recipe: Recipe, predictor: Predictor, rows: list[TextRow], prompt_name: str | None) -> NDArray[np.float32]:
    texts = [row.text for row in rows]
    return predictor.embed(texts, recipe.pooling, recipe.batch_tokens, prompt_name, recipe.dimensions)


def _iter_chunks(recipe: Recipe, skip: int) -> Iterator[list[TextRow]]:
    if is_standard_input(recipe.data):
        lines = open_standard_input(recipe.encoding)
        yield from iter_available(raise_bad_rows(read_input_texts(lines, recipe.columns, skip_bad=True)), CHUNK_SIZE, lines)
        return
    rows = islice(_iter_rows(recipe), skip, None)
    while chunk := list(islice(rows, CHUNK_SIZE)):
        yield chunk


def _iter_rows(recipe: Recipe) -> Iterator[TextRow]:
    return (
        iter([TextRow(recipe.text)])
        if recipe.text is not None
        else read_valid_texts(resolve_path(str(recipe.data), "data"), recipe.columns, recipe.encoding)
    )


def _count_texts(recipe: Recipe) -> int:
    return sum(1 for _ in _iter_rows(recipe))
