"""Prediction requests: plain values, data frames or files as examples of a task, for `Predictor` and `predict`.

Labels are ignored if present. `parse_requests` takes values, `read_requests` and `read_texts` read files.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import UserError
from ..tokenization.tables import UTF8, is_json, preview_json
from ..tokenization.tokenizer import replace_surrogates
from . import (
    MultipleChoice,
    QuestionAnswering,
    Seq2Seq,
    TaskConfig,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from .base import TableByTask
from .conll_files import Sentence, hide_tag_column, is_conll, read_sentences
from .special_tokens import TemplateTask
from .squad_files import QuestionAnsweringExample, read_questions
from .table_rows import BadRow, ExampleReader, ExampleRow, is_plain_text, read_examples
from .text_pairs import TextPairTask
from .token_classification import TokenClassificationPrediction, join_tokens, sentence_from_text

INLINE_PATH = Path("request.jsonl")  # path of a request that does not come from a file
LABEL_FIELDS = ("label", "tags", "answers", "score", "span", "negative", "target")


class RequestFields(NamedTuple):
    """Required and optional fields of a request, and a usage example for error messages."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    usage: str


REQUEST_FIELDS = TableByTask[RequestFields](
    {
        TextClassification: RequestFields(("text",), ("text_b",), 'model("a fine film")'),
        TextRegression: RequestFields(("text",), ("text_b",), 'model("a fine film")'),
        TextSimilarity: RequestFields(("text", "text_b"), (), 'model("a fine film", "a good film")'),
        Seq2Seq: RequestFields(("text",), (), 'model("a source text")'),
        MultipleChoice: RequestFields(
            ("context", "options"), ("question",), 'model(context="It rains.", options=["wet", "dry"])'
        ),
        QuestionAnswering: RequestFields(("question", "context"), (), 'model(question="Who sings?", context="She sings.")'),
        TokenClassification: RequestFields(
            ("text",), ("tokens",), 'model("Ada was here") or model(tokens=["Ada", "was", "here"])'
        ),
    }
)


@dataclass(frozen=True)
class Request:
    """An example, and for task=tag its text: entities are reported as character offsets in it."""

    example: Any
    text: str | None = None  # None: the tokens, joined

    def to_answer(self, prediction: Any, top_k: int | None = None) -> Any:
        """The prediction as JSON-compatible values, in the form of the task."""
        if not isinstance(prediction, TokenClassificationPrediction) or top_k is not None:
            return prediction.to_answer(top_k)
        return prediction.to_entities(*self._text_with_offsets())

    def to_row(self, prediction: Any, top_k: int | None = None) -> dict[str, Any]:
        """The answer with the `id` of the row, or its texts if it has none; the list of a tagger as `entities`."""
        answer = self.to_answer(prediction, top_k)
        return self._row_key() | (answer if isinstance(answer, dict) else {"entities": answer})

    def _row_key(self) -> dict[str, Any]:
        if self.example.id != "":
            return {"id": self.example.id}
        if isinstance(self.example, Sentence):
            return {"text": self._text_with_offsets()[0]}
        names = ("text", "text_b", "question", "context")
        return {name: text for name in names if (text := getattr(self.example, name, None)) is not None}

    def _text_with_offsets(self) -> tuple[str, list[tuple[int, int]]]:
        """The text of a sentence, and the characters [start, end) of each of its tokens."""
        return join_tokens(self.example.tokens) if self.text is None else (self.text, sentence_from_text(self.text)[1])


class TextRow(NamedTuple):
    """A row of a file of texts, with the value of its field or column `id` (empty if there is none)."""

    text: str
    id: str | int = ""

    def key(self) -> dict[str, Any]:
        """`{"id": ...}`, or `{"text": ...}` for a row without an id."""
        return {"text": self.text} if self.id == "" else {"id": self.id}


def parse_requests(task: TaskConfig, inputs: Any, text_b: Any, fields: Mapping[str, Any]) -> tuple[list[Request], bool]:
    """The requests, and whether the input was a single one instead of several.

    Several inputs are an iterable of texts or mappings, or a data frame with a column for each field.
    """
    if isinstance(inputs, str | Mapping) or inputs is None:
        values = {**(inputs if isinstance(inputs, Mapping) else {"text": inputs}), "text_b": text_b, **fields}
        return [_parse_request(task, _drop_none(values))], True
    fields = dict(fields)
    text_b = fields.pop("text_b", text_b)
    if not is_text_iterable(inputs) and not is_data_frame(inputs):
        raise UserError(
            f"{preview_json(_printable(inputs))} is not a text or a list of texts; call for example "
            f"{REQUEST_FIELDS[type(task)].usage}"
        )
    if fields:
        raise UserError(f"{next(iter(fields))}=... is for a single input; give several inputs as a list of dictionaries")
    rows = _frame_rows(task, inputs) if is_data_frame(inputs) else list(inputs)
    seconds = [None] * len(rows) if text_b is None else list(text_b) if is_text_iterable(text_b) else [text_b]
    if len(seconds) != len(rows):
        raise UserError(f"{len(rows)} texts and {len(seconds)} values of text_b; give a list of as many")
    requests = [_drop_none(row if isinstance(row, Mapping) else {"text": row}) for row in rows]
    return [
        _parse_request(task, request if second is None else request | {"text_b": second})
        for request, second in zip(requests, seconds, strict=True)
    ], False


def is_text_iterable(value: Any) -> bool:
    """Whether a value holds several inputs: a list, tuple, array, Series or generator, not a string, mapping or data frame."""
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return False
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) and not is_data_frame(value)


def is_data_frame(value: Any) -> bool:
    """Whether a value has named columns, like the data frames of pandas and polars; neither is imported."""
    return not isinstance(value, Mapping) and hasattr(value, "columns") and hasattr(value, "__getitem__")


def read_requests(task: TaskConfig, path: Path, skip_bad: bool = False, encoding: str = UTF8) -> Iterator[Request | BadRow]:
    """The requests of a file; missing, invalid or unknown labels are ignored.

    An invalid row raises an error, or is yielded in its place with `skip_bad`; the task's own `skip_bad` is not used.
    """
    reader = _read_examples(task, path, encoding)
    for row in reader.iter_with_errors() if skip_bad else reader:
        yield row if isinstance(row, BadRow | Request) else Request(row)


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
    for row in read_texts(path, columns, skip_bad=True, encoding=encoding):
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
    for item in items:
        if not isinstance(item, str):
            raise UserError(f"{preview_json(_printable(item))} is not a text; give a text or a list of texts")
    return items, False


def _frame_rows(task: TaskConfig, frame: Any) -> list[dict[str, Any]]:
    """Rows of a data frame as fields of the task, from columns of these names or those of the training files."""
    required, optional, _ = REQUEST_FIELDS[type(task)]
    names = (*required, *optional, *(task.template_columns() if isinstance(task, TemplateTask) else ()))
    renamed, columns = getattr(task, "columns", {}), list(frame.columns)
    sources = {name: name if name in columns else renamed.get(name, name) for name in names}
    present = {name: list(frame[source]) for name, source in sources.items() if source in columns}
    if not present:
        raise UserError(f"the data frame has no column {required[0]}; its columns: {', '.join(map(str, columns))}")
    rows = zip(*present.values(), strict=True)
    return [{name: None if _is_missing(value) else value for name, value in zip(present, row, strict=True)} for row in rows]


def _is_missing(value: Any) -> bool:
    """Whether a value of a data frame is null (None or NaN)."""
    return value is None or (isinstance(value, float) and value != value)


def _read_examples(task: TaskConfig, path: Path, encoding: str) -> ExampleReader[Any]:
    if isinstance(task, QuestionAnswering):
        return ExampleReader(path, read_questions(path, None, task.fill_template, encoding))
    if isinstance(task, TokenClassification):
        if _is_json_file(path) or (is_plain_text(path) and not is_conll(path, task.labels, encoding)):
            return ExampleReader(path, read_examples(path, partial(_parse_sentence_row, task), task.columns, encoding=encoding))
        sentences = read_sentences(path, hide_tag_column(task.columns), task.fill_template, encoding)
        return ExampleReader(path, map(_remove_tags, sentences))
    hidden = {**task.columns, **dict.fromkeys(("label", "score", "negative", "target"), "")}
    return msgspec.structs.replace(task, columns=hidden, skip_bad=False).read(path, encoding)


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _parse_request(task: TaskConfig, values: dict[str, Any]) -> Request:
    tag = task.__struct_config__.tag
    _check_fields(task, values)
    # The columns of the template are optional in a request, and labels are allowed but ignored.
    columns = dict.fromkeys(task.template_columns() if isinstance(task, TemplateTask) else ())
    row_values = {name: list(value) if isinstance(value, tuple) else value for name, value in {**columns, **values}.items()}
    row = ExampleRow({name: value for name, value in row_values.items() if name not in LABEL_FIELDS}, INLINE_PATH, 1)
    if isinstance(task, TokenClassification):
        request = (
            Request(Sentence(tokens=tuple(values["tokens"]))) if "tokens" in values else _request_from_text(values["text"])
        )
        return replace(request, example=replace(request.example, special_tokens=task.fill_template(row.get_cell)))
    if isinstance(task, QuestionAnswering):
        question, context = replace_surrogates(values["question"]), replace_surrogates(values["context"])
        return Request(
            QuestionAnsweringExample(question=question, context=context, special_tokens=task.fill_template(row.get_cell))
        )
    try:
        return Request(replace(task._parse_row(row), source="", line=0))
    except BadRow as error:
        raise UserError(f"input of a model for task={tag}: {error_without_hint(error).split(': ', 1)[-1]}") from None


def _check_fields(task: TaskConfig, values: dict[str, Any]) -> None:
    """Raise if a required field is missing, a field is unknown, or a value has the wrong type."""
    required, optional, usage = REQUEST_FIELDS[type(task)]
    tag, has_template = task.__struct_config__.tag, getattr(task, "template", "")
    required = ("tokens",) if isinstance(task, TokenClassification) and "tokens" in values else required
    if isinstance(task, TextPairTask) and "text_b" in task.columns:  # the model was fine-tuned on pairs
        required += ("text_b",)
    problems = [f"{name} is missing" for name in required if name not in values]
    problems += [
        f"{name} is not a field of this task"
        for name in values
        if name not in (*required, *optional, *LABEL_FIELDS) and not has_template
    ]
    for name in required + optional:
        value, is_text_list = values.get(name), name in ("tokens", "options")
        is_valid_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if value is not None and not (is_valid_list if is_text_list else isinstance(value, str)):
            problems.append(
                f"{name} is {preview_json(_printable(value))}, not {'a list of texts' if is_text_list else 'a text'}"
            )
    if problems:
        raise UserError(f"input of a model for task={tag}: {problems[0]}; call for example {usage}")


def _printable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _request_from_text(text: str) -> Request:
    return Request(sentence_from_text(text)[0], text)


def _is_json_file(path: Path) -> bool:
    try:
        return not is_plain_text(path) and is_json(path)
    except UserError:  # CoNLL files have any suffix
        return False


def _parse_sentence_row(task: TokenClassification, row: ExampleRow) -> Request:
    """A JSON line with `tokens`, or with a raw `text` to be split into tokens; a line of a .txt is a raw text."""
    if row.get("tokens") is None and isinstance(row.get("text"), str):
        request = _request_from_text(row.get("text"))
        return replace(request, example=replace(request.example, id=row.id, special_tokens=task.fill_template(row.get_cell)))
    if not isinstance(tokens := row.require("tokens"), list) or not all(isinstance(token, str) for token in tokens):
        raise row.error("tokens is not a list of texts")
    fields: dict[str, Any] = {"document": str(row.get("document")), "special_tokens": task.fill_template(row.get_cell)}
    return Request(Sentence(tokens=tuple(tokens), source=str(row.path), line=row.line, id=row.id, **fields))


def _remove_tags(sentence: Sentence | BadRow) -> Sentence | BadRow:
    return sentence if isinstance(sentence, BadRow) else replace(sentence, tags=None)
