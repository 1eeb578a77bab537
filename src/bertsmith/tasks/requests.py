"""Prediction requests: plain values, data frames or files as examples of a task, for `Predictor` and `predict`.

Labels are ignored if present. `parse_requests` takes values, `read_requests` and `read_texts` read files.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..tokenization.parquet import is_missing
from ..tokenization.rows import is_data_frame
from ..tokenization.tables import UTF8, preview_json
from .base import Example, Task
from .special_tokens import TemplateTask
from .table_rows import BadRow, ExampleReader, ExampleRow, read_examples

INLINE_PATH = Path("request.jsonl")  # path of a request that does not come from a file
LABEL_FIELDS = ("label", "tags", "answers", "score", "span", "negative", "target")


class TextRow(NamedTuple):
    """A row of a file of texts, with the value of its field or column `id` (empty if there is none)."""

    text: str
    id: str | int = ""

    def key(self) -> dict[str, Any]:
        """`{"id": ...}`, or `{"text": ...}` for a row without an id."""
        return {"text": self.text} if self.id == "" else {"id": self.id}


def parse_requests(task: Task, inputs: Any, text_b: Any, fields: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """The examples, and whether the input was a single one instead of several.

    Several inputs are an iterable of texts or mappings, or a data frame with a column for each field.
    """
    if isinstance(inputs, str | Mapping) or inputs is None:
        values = {**(inputs if isinstance(inputs, Mapping) else {"text": inputs}), **fields}
        if text_b is not None:
            values["text_b"] = text_b
        return [_parse_request(task, _drop_none(values))], True
    fields = dict(fields)
    text_b = fields.pop("text_b", text_b)
    if not is_text_iterable(inputs) and not is_data_frame(inputs):
        raise UserError(
            f"{preview_json(_printable(inputs))} is not a text or a list of texts; call for example "
            f"{task.request_fields().usage}"
        )
    if fields:
        raise UserError(f"{next(iter(fields))}=... is for a single input; give several inputs as a list of dictionaries")
    rows = _frame_rows(task, inputs) if is_data_frame(inputs) else list(inputs)
    seconds = [None] * len(rows) if text_b is None else list(text_b) if is_text_iterable(text_b) else [text_b]
    if len(seconds) != len(rows):
        raise UserError(f"{len(rows)} texts and {len(seconds)} values of text_b; give a list of as many")
    requests = [_drop_none(row if isinstance(row, Mapping) else {"text": row}) for row in rows]
    return [
        _parse_request(task, request if second is None else request | {"text_b": second}, number)
        for number, (request, second) in enumerate(zip(requests, seconds, strict=True), 1)
    ], False


def is_text_iterable(value: Any) -> bool:
    """Whether a value holds several inputs: a list, tuple, array, Series or generator, not a string, mapping or data frame."""
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return False
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) and not is_data_frame(value)


def read_requests(task: Task, path: Path, skip_bad: bool = False, encoding: str = UTF8) -> Iterator[Example | BadRow]:
    """The examples of a file; missing, invalid or unknown labels are ignored.

    An invalid row raises an error, or is yielded in its place with `skip_bad`; the task's own `skip_bad` is not used.
    """
    reader = task.read_requests(path, encoding)
    yield from reader.iter_with_errors() if skip_bad else reader


def answer_row(task: Task, prediction: Any, example: Example, top_k: int | None = None) -> dict[str, Any]:
    """The answer with the `id` of the row, or its texts if it has none; a list of answers as `entities`."""
    answer = task.to_answer(prediction, example, top_k)
    key = task.input_texts(example) if example.id == "" else {"id": example.id}
    return key | (answer if isinstance(answer, dict) else {"entities": answer})


def read_texts(
    path: Path, columns: Mapping[str, str], skip_bad: bool = False, encoding: str = UTF8
) -> Iterator[TextRow | BadRow]:
    """Every row, or every line of a .txt; with `skip_bad` a BadRow in place of an invalid row."""
    reader = ExampleReader(
        path, read_examples(path, lambda row: TextRow(row.get_text("text"), row.id), columns, encoding=encoding)
    )
    return reader.iter_with_errors() if skip_bad else reader


def read_valid_texts(path: Path, columns: Mapping[str, str], encoding: str = UTF8) -> Iterator[TextRow]:
    """Every row, or every line of a .txt; an invalid row raises an error."""
    return raise_bad_rows(read_texts(path, columns, skip_bad=True, encoding=encoding))


def raise_bad_rows(rows: Iterator[TextRow | BadRow]) -> Iterator[TextRow]:
    """The rows; an invalid one raises an error that does not speak of `skip_bad`, for commands that have no such key."""
    for row in rows:
        if isinstance(row, BadRow):
            raise UserError(f"{error_without_hint(row)}; fix the row")
        yield row


def error_without_hint(error: BadRow) -> str:
    """The message of a BadRow without the hint how to fix it."""
    return str(error).split("; fix")[0]


def as_text_list(texts: Iterable[str] | str) -> tuple[list[str], bool]:
    """The input as a list of texts, and whether it was a single text."""
    if isinstance(texts, str):
        return [texts], True
    if is_data_frame(texts):
        raise UserError('a data frame has several columns; give one of them, such as df["text"]')
    if not is_text_iterable(texts):
        raise UserError(f"{preview_json(_printable(texts))} is not a text or a list of texts")
    items = list(texts)
    for number, item in enumerate(items, 1):
        if not isinstance(item, str):
            raise UserError(
                f"row {number:,} of the input: {preview_json(_printable(item))} is not a text; give a text or a list of texts"
            )
    return items, False


def _frame_rows(task: Task, frame: Any) -> list[dict[str, Any]]:
    """Rows of a data frame as fields of the task, from columns of these names or those of the training files."""
    required, optional, *_ = task.request_fields()
    names = (*required, *optional, *(task.template_columns() if isinstance(task, TemplateTask) else ()))
    renamed, columns = getattr(task, "columns", {}), list(frame.columns)
    sources = {name: name if name in columns else renamed.get(name, name) for name in names}
    present = {name: list(frame[source]) for name, source in sources.items() if source in columns}
    if not present:
        raise UserError(f"the data frame has no column {required[0]}; its columns: {', '.join(map(str, columns))}")
    rows = zip(*present.values(), strict=True)
    return [dict(zip(present, row, strict=True)) for row in rows]


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not is_missing(value)}


def _parse_request(task: Task, values: dict[str, Any], number: int = 0) -> Example:
    """The example of one input; `number` is its number, from 1, of several."""
    prefix = f"row {number:,} of the input" if number else "input"
    _check_fields(task, values, prefix)
    # The columns of the template are optional in a request, and labels are allowed but ignored.
    columns = dict.fromkeys(task.template_columns() if isinstance(task, TemplateTask) else ())
    row_values = {name: list(value) if isinstance(value, tuple) else value for name, value in {**columns, **values}.items()}
    labels = {*LABEL_FIELDS, *task.label_fields}
    row = ExampleRow({name: value for name, value in row_values.items() if name not in labels}, INLINE_PATH, 1)
    try:
        example: Example = replace(task.parse_row(row), source="", line=0)
    except BadRow as error:
        problem = error_without_hint(error).split(": ", 1)[-1]
        raise UserError(f"{prefix} of a model for task={task.__struct_config__.tag}: {problem}") from None
    return example


def _check_fields(task: Task, values: dict[str, Any], prefix: str) -> None:
    """Raise if a required field is missing, a field is unknown, or a value has the wrong type."""
    required, optional, usage, text_lists = task.request_fields(values)
    has_template, labels = getattr(task, "template", ""), {*LABEL_FIELDS, *task.label_fields}
    problems = [f"{name} is missing" for name in required if name not in values]
    problems += [
        f"{name} is not a field of this task"
        for name in values
        if name not in {*required, *optional, *labels} and not has_template
    ]
    for name in required + optional:
        value, is_text_list = values.get(name), name in text_lists
        is_valid_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if value is not None and not (is_valid_list if is_text_list else isinstance(value, str)):
            problems.append(
                f"{name} is {preview_json(_printable(value))}, not {'a list of texts' if is_text_list else 'a text'}"
            )
    if problems:
        raise UserError(f"{prefix} of a model for task={task.__struct_config__.tag}: {problems[0]}; call for example {usage}")


def _printable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)
