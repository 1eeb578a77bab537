"""`bertsmith predict`: the answer for a text, or one JSON object per row of a file of any size, in input order.

The answer for a text is what `Predictor` returns. The answer for a row also has its `id`, or its texts if it has none.
"""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import resolve_path
from ..config import Config, PosInt, to_dict
from ..console import Console, print_result, print_text
from ..errors import UserError
from ..inference import output_files
from ..inference.engines.base import Backend, Precision
from ..inference.predictor import Predictor, load
from ..model.generation.config import Beam, GenerationConfig, Greedy, Sample
from ..rng import Stream, random_bits
from ..tasks import Task
from ..tasks.chunked_rows import DocumentContext, RowChunk, chunk_rows
from ..tasks.requests import answer_row, error_without_hint, read_requests, read_texts
from ..tasks.standard_input import (
    is_standard_input,
    iter_available,
    open_standard_input,
    read_input_requests,
    read_input_texts,
)
from ..tasks.table_rows import BadRow
from ..writing import resolve_output

CHUNK_SIZE = 1024  # examples held in memory and sorted by length together (besides neighboring rows used as context)
INPUT_KEYS = ("text", "text_b", "question", "context", "options")
LM_KEYS = ("candidates", "iterative", "likelihood")


AnswerFn = Callable[[RowChunk], list[Any]]


class Recipe(Config, frozen=True):
    """The model, its input and how to decode."""

    model: Annotated[str, "fine-tuned checkpoint; a pre-trained one fills masks or, if causal, continues text"]
    text: Annotated[str | None, "input text; with [MASK] for a masked LM, or a prompt for a causal LM"] = None
    text_b: Annotated[str | None, "second text of a pair"] = None
    question: Annotated[str | None, "answer, choose: the question"] = None
    context: Annotated[str | None, "answer, choose: the passage"] = None
    options: Annotated[tuple[str, ...] | None, "choose: the options"] = None
    data: Annotated[
        str | None,
        "input file in the task's format, or .txt with one text per line; -: standard input; labels are ignored",
    ] = None
    columns: Annotated[dict[str, str], "column names: { text = NAME, text_b = NAME ... }; default: as in training"] = (
        msgspec.field(default_factory=dict)
    )
    encoding: Annotated[str, "encoding of data: utf-8, gb18030, latin-1 ..."] = "utf-8"
    skip_bad: Annotated[bool, 'write {"error": ...} for invalid rows, instead of stopping'] = False
    top_k: Annotated[
        PosInt | None, "predictions per [MASK] (default 5); answer: list candidates too; classify: only the top scores"
    ] = None
    iterative: Annotated[bool, "fill several masks one by one, most confident first, instead of independently"] = False
    candidates: Annotated[tuple[str, ...] | None, "words to rank for the single [MASK] of a text"] = None
    generate: Annotated[
        GenerationConfig, "decoding of generated text: greedy, sample or beam; default: greedy, or the task's own"
    ] = Greedy()
    likelihood: Annotated[bool, "log-likelihood of texts under a pre-trained model (pseudo-log-likelihood for a masked LM)"] = (
        False
    )
    out: Annotated[str | None, "output .jsonl file; default: standard output"] = None
    overwrite: Annotated[bool, "replace an existing out of other inputs or settings; default: refuse"] = False
    batch_tokens: Annotated[PosInt | None, "tokens per batch; default: chosen for the device"] = None
    backend: Annotated[Backend, "torch, onnx (onnxruntime), openvino, or auto: the fastest that can open the model"] = "auto"
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, and on a CPU with instructions for it; else fp32"] = "auto"


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Write one JSON line per input; an interrupted output file is resumed by the same command."""
    inputs = _read_inputs(recipe)
    out = resolve_output(recipe.out) if recipe.out is not None else None
    if out:
        output_files.check_output_file(out, recipe.model, recipe.data)
    console = Console(quiet)
    run_id = output_files.compute_run_id(recipe, recipe.model, recipe.data) if out else ""
    if out and (finished := output_files.read_finished_result(out, run_id, recipe.overwrite)):
        console.info(f"{out} has the {finished['answers']:,} answers of this command already")
        return finished | {"out": recipe.out}
    predictor = load(recipe.model, recipe.backend, recipe.precision, recipe.device)
    if out is None:
        return _print_answers(recipe, predictor, inputs)
    count = _write_answers(recipe, predictor, inputs, out, run_id, console)
    if recipe.skip_bad and (num_errors := _count_errors(out)):
        console.warn(f'{num_errors:,} invalid rows; their lines in {out} are {{"error": ...}}')
    return output_files.record_result(out, {"model": recipe.model, "answers": count, "out": recipe.out})


def run_on_terminal(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """What the command line runs if stdout is a terminal and --json is not set: as `run`, but generated text is printed as
    text, piece by piece, unless beam search finds it."""
    inputs = _read_inputs(recipe)
    if list(inputs) != ["text"] or any(getattr(recipe, name) for name in ("out", "top_k", *LM_KEYS)):
        return run(recipe, quiet)
    predictor = load(recipe.model, recipe.backend, recipe.precision, recipe.device)
    search = predictor.default_search
    if search is not None and recipe.generate != Greedy():
        search = recipe.generate
    if search is None or isinstance(search, Beam):
        return _print_answers(recipe, predictor, inputs)
    for piece in predictor.stream(inputs["text"], **to_dict(search)):
        print_text(piece)
    print_text("\n")
    return {"model": recipe.model, "answers": 1, "out": None}


def call(recipe: Recipe, quiet: bool = False) -> Any:
    """What `bertsmith.predict` returns: the answer for a text, the answers for a file; with `out`, the result of `run`."""
    if recipe.out is not None:
        return run(recipe, quiet)
    inputs, predictor = _read_inputs(recipe), load(recipe.model, recipe.backend, recipe.precision, recipe.device)
    answers = [answer for chunk in _iter_answers(recipe, predictor, inputs) for answer in chunk]
    return answers if recipe.data is not None else answers[0]


def _read_inputs(recipe: Recipe) -> dict[str, Any]:
    """The input given by keys; empty where it is a file."""
    inputs = {name: value for name in INPUT_KEYS if (value := getattr(recipe, name)) is not None}
    if bool(inputs) and recipe.data is not None:
        raise UserError(f"give {next(iter(inputs))}=... or data=FILE, and not both")
    if not inputs and recipe.data is None:
        raise UserError(f'give a text or data=FILE: bertsmith predict {recipe.model} "a text"')
    return inputs


def _print_answers(recipe: Recipe, predictor: Predictor, inputs: dict[str, Any]) -> dict[str, Any]:
    count = 0
    for answers in _iter_answers(recipe, predictor, inputs):
        print_result(*(_to_json_line(answer).decode().rstrip("\n") for answer in answers))
        count += len(answers)
    return {"model": recipe.model, "answers": count, "out": None}


def _write_answers(
    recipe: Recipe, predictor: Predictor, inputs: dict[str, Any], out: Path, run_id: str, console: Console
) -> int:
    with (
        output_files.open_line_output(out, run_id) as (file, num_written),
        console.progress_bar("answers") as bar,
    ):
        if num_written:
            console.info(f"{out}: resuming after {num_written:,} answers")
        count, total = num_written - num_written % CHUNK_SIZE, _count_rows(recipe, predictor, console)
        for answers in _iter_answers(recipe, predictor, inputs, count):
            # The last digits of an answer depend on the batch it is in, so a partly written chunk is computed again whole.
            file.write(b"".join(map(_to_json_line, answers[max(0, num_written - count) :])))
            file.flush()
            count += len(answers)
            bar(count, total)
    console.info(f"{count:,} answers in {out}, computed by {predictor.engine}")
    return count


def _count_errors(out: Path) -> int:
    """Error lines in the whole output file, including those of an earlier interrupted run."""
    with out.open("rb") as file:
        return sum(line.startswith(b'{"error": ') for line in file)


def _iter_answers(recipe: Recipe, predictor: Predictor, inputs: dict[str, Any], skip: int = 0) -> Iterator[list[Any]]:
    """Lists of up to CHUNK_SIZE answers, after the first `skip` inputs (a multiple of CHUNK_SIZE)."""
    if recipe.data is None:
        if _uses_language_model(recipe, predictor):
            if list(inputs) != ["text"]:
                raise UserError(f"{next(name for name in inputs if name != 'text')}=... needs a model fine-tuned for a task; a "
                               "pre-trained one takes text=... alone")  # fmt: skip
            yield _lm_answer_fn(recipe, predictor)([str(recipe.text)])
        else:
            _set_generation_config(recipe, predictor)
            yield [predictor(top_k=recipe.top_k, batch_tokens=recipe.batch_tokens, **inputs)]
        return
    answer_fn = _with_row_errors(
        _lm_row_fn(recipe, predictor) if _uses_language_model(recipe, predictor) else _task_row_fn(recipe, predictor)
    )
    if is_standard_input(recipe.data):
        yield from map(answer_fn, _iter_standard_input(recipe, predictor))
        return
    chunks = chunk_rows(_read_rows(recipe, predictor), CHUNK_SIZE, _document_context(recipe, predictor))
    yield from map(answer_fn, islice(chunks, skip // CHUNK_SIZE, None))


def _read_rows(recipe: Recipe, predictor: Predictor) -> Iterator[Any]:
    path = resolve_path(str(recipe.data), "data")
    if _uses_language_model(recipe, predictor):
        return read_texts(path, recipe.columns, recipe.skip_bad, recipe.encoding)
    return read_requests(_task_with_columns(recipe, predictor), path, recipe.skip_bad, recipe.encoding)


def _iter_standard_input(recipe: Recipe, predictor: Predictor) -> Iterator[RowChunk]:
    """The rows that have arrived, up to CHUNK_SIZE at a time."""
    lines = open_standard_input(recipe.encoding)
    if _uses_language_model(recipe, predictor):
        rows: Iterator[Any] = read_input_texts(lines, recipe.columns, recipe.skip_bad)
    else:
        rows = read_input_requests(_task_with_columns(recipe, predictor), lines, recipe.skip_bad)
    return map(RowChunk, iter_available(rows, CHUNK_SIZE, lines))


def _task_with_columns(recipe: Recipe, predictor: Predictor) -> Task:
    task = predictor.require_task()
    return msgspec.structs.replace(task, columns=recipe.columns) if recipe.columns and hasattr(task, "columns") else task


def _document_context(recipe: Recipe, predictor: Predictor) -> DocumentContext | None:
    if _uses_language_model(recipe, predictor):
        return None
    context = DocumentContext(predictor.require_task(), predictor.tokenizer, predictor.max_length)
    return context if context.task.max_context(predictor.max_length) else None


def _uses_language_model(recipe: Recipe, predictor: Predictor) -> bool:
    return predictor.task is None or any(getattr(recipe, name) for name in LM_KEYS)


def _with_row_errors(answer_fn: AnswerFn) -> AnswerFn:
    """Wrap `answer_fn` so that each bad row gets {"error": message} at its own index."""

    def answer_or_error(chunk: RowChunk) -> list[Any]:
        answers = iter(answer_fn(chunk._replace(rows=[row for row in chunk.rows if not isinstance(row, BadRow)])))
        return [{"error": error_without_hint(row)} if isinstance(row, BadRow) else next(answers) for row in chunk.rows]

    return answer_or_error


def _set_generation_config(recipe: Recipe, predictor: Predictor) -> None:
    if recipe.generate != Greedy():
        if predictor.task is None or predictor.task.head_type != "lm":
            raise UserError(
                "generate=... is for task=generate and causal models, and this model has another task; leave it out"
            )
        predictor.generation_config = recipe.generate


def _generation_config_of(recipe: Recipe, chunk: RowChunk) -> GenerationConfig:
    """Decoding of a chunk of rows: its own seed for sampling, so that copies of a text in other chunks get other samples."""
    config = recipe.generate
    if not isinstance(config, Sample) or not chunk.number:
        return config
    return msgspec.structs.replace(config, seed=int(random_bits(config.seed, Stream.GENERATION_CHUNK, chunk.number)))


def _task_row_fn(recipe: Recipe, predictor: Predictor) -> AnswerFn:
    _set_generation_config(recipe, predictor)
    task = predictor.require_task()

    def answer(chunk: RowChunk) -> list[Any]:
        if predictor.generation_config is not None:
            predictor.generation_config = _generation_config_of(recipe, chunk)
        predictions = predictor.predict_examples(chunk.rows, recipe.batch_tokens, chunk.before, chunk.after)
        return [answer_row(task, *pair, recipe.top_k) for pair in zip(predictions, chunk.rows, strict=True)]

    return answer


def _lm_row_fn(recipe: Recipe, predictor: Predictor) -> AnswerFn:
    list_key = "candidates" if recipe.candidates else "predictions"
    _lm_answer_fn(recipe, predictor)  # raises its errors before the file is read

    def answer(chunk: RowChunk) -> list[Any]:
        chunk_recipe = msgspec.structs.replace(recipe, generate=_generation_config_of(recipe, chunk))
        answers = _lm_answer_fn(chunk_recipe, predictor)([row.text for row in chunk.rows])
        rows = zip(chunk.rows, answers, strict=True)
        return [row.key() | (result if isinstance(result, dict) else {list_key: result}) for row, result in rows]

    return answer


def _lm_answer_fn(recipe: Recipe, predictor: Predictor) -> Callable[[list[str]], list[Any]]:
    """Answers of a model without a task: likelihoods, continuations, ranked candidates or filled masks."""
    if recipe.likelihood:
        return lambda texts: predictor.likelihood(texts, recipe.batch_tokens)
    if predictor.is_causal_lm:
        if recipe.top_k is not None:
            raise UserError(f"top_k={recipe.top_k} is for masks; sample with generate=sample generate.top_k={recipe.top_k}")
        search = to_dict(recipe.generate)
        return lambda texts: predictor.generate(texts, batch_tokens=recipe.batch_tokens, **search)
    if recipe.generate != Greedy():
        raise UserError("generate=... is for causal models and task=generate; this model fills masks: leave it out")
    if recipe.candidates:
        return lambda texts: [predictor.fill(text, candidates=recipe.candidates) for text in texts]
    return lambda texts: [predictor.fill(text, recipe.top_k or 5, iterative=recipe.iterative) for text in texts]


def _count_rows(recipe: Recipe, predictor: Predictor, console: Console) -> int:
    """Number of input rows for the progress bar; the file is read once more, but only where the bar is shown."""
    is_file = recipe.data is not None and not is_standard_input(recipe.data)
    is_bar_shown = is_file and not console.quiet and sys.stderr.isatty()
    return sum(1 for _ in _read_rows(recipe, predictor)) if is_bar_shown else 1


def _to_json_line(answer: Any) -> bytes:
    return (json.dumps(answer, ensure_ascii=False) + "\n").encode("utf-8", "replace")
