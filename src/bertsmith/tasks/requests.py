"""Prediction requests: plain values or files as examples of a task, for `Predictor`, `predict` and the server.

Labels are ignored if present. `parse_requests` takes values, `read_requests` and `read_texts` read files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..config import to_dict
from ..errors import UserError
from ..tokenization.tables import is_json, preview_json
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
from .token_classification import sentence_from_text

INLINE_PATH = Path("question.jsonl")  # path of a request that does not come from a file, for messages
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
        Seq2Seq: RequestFields(("text",), (), 'model("a text to be answered")'),
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
    """An example, and its raw text if entities are reported as character offsets in that text."""

    example: Any
    text: str | None = None

    def to_dict(self, prediction: Any) -> dict[str, Any]:
        """The prediction as plain values; for a raw text, entities have character offsets instead of token offsets."""
        values: dict[str, Any] = to_dict(prediction)
        if self.text is None:
            return values
        spans = sentence_from_text(self.text)[1]
        entity_spans = [
            {"start": spans[entity["start"]][0], "end": spans[entity["end"] - 1][1], "type": entity["type"]}
            for entity in values["entities"]
        ]
        entities = [{**entity, "text": self.text[entity["start"] : entity["end"]]} for entity in entity_spans]
        return {"entities": entities, "tokens": list(self.example.tokens), "tags": list(values["tags"])}


def parse_requests(task: TaskConfig, inputs: Any, text_b: Any, fields: Mapping[str, Any]) -> tuple[list[Request], bool]:
    """The requests, and whether the input was a single one instead of a list."""
    if isinstance(inputs, str | Mapping) or inputs is None:
        values = {**(inputs if isinstance(inputs, Mapping) else {"text": inputs}), "text_b": text_b, **fields}
        return [_parse_request(task, _drop_none(values))], True
    fields = dict(fields)
    text_b = fields.pop("text_b", text_b)
    if not isinstance(inputs, Sequence | np.ndarray) or isinstance(inputs, bytes):
        raise UserError(
            f"{preview_json(_printable(inputs))} is not a question; ask for example {REQUEST_FIELDS[type(task)].usage}"
        )
    if fields:
        raise UserError(f"{next(iter(fields))}=... goes with one question; ask several as a list of dictionaries")
    seconds = [None] * len(inputs) if text_b is None else text_b
    if not isinstance(seconds, Sequence | np.ndarray) or isinstance(seconds, str) or len(seconds) != len(inputs):
        raise UserError(f"{len(inputs)} texts need as many second ones, as a list")
    requests = [_drop_none(request if isinstance(request, Mapping) else {"text": request}) for request in inputs]
    return [
        _parse_request(task, request if second is None else request | {"text_b": second})
        for request, second in zip(requests, seconds, strict=True)
    ], False


def read_requests(task: TaskConfig, path: Path, skip_bad: bool = False) -> Iterator[Request | BadRow]:
    """The requests of a file; missing, invalid or unknown labels are ignored.

    An invalid row raises an error, or is yielded in its place with `skip_bad`; the task's own `skip_bad` is not used.
    """
    reader = _read_examples(task, path)
    for row in reader.iter_with_errors() if skip_bad else reader:
        yield row if isinstance(row, BadRow | Request) else Request(row)


def read_texts(path: Path, columns: Mapping[str, str], skip_bad: bool = False) -> Iterator[str | BadRow]:
    """The text of every row, or every line of a .txt; with `skip_bad` a BadRow in place of an invalid row."""
    reader = ExampleReader(path, read_examples(path, lambda row: row.get_text("text"), columns))
    return reader.iter_with_errors() if skip_bad else reader


def read_valid_texts(path: Path, columns: Mapping[str, str]) -> Iterator[str]:
    """The text of every row, or every line of a .txt; an invalid row raises an error."""
    for row in read_texts(path, columns, skip_bad=True):
        if isinstance(row, BadRow):
            raise UserError(f"{error_without_hint(row)}; mend the row")
        yield row


def error_without_hint(error: BadRow) -> str:
    """The message of a BadRow without the hint how to fix it."""
    return str(error).split("; mend")[0]


def as_text_list(texts: Iterable[str] | str) -> tuple[list[str], bool]:
    """The input as a list of texts, and whether it was a single text."""
    if isinstance(texts, str):
        return [texts], True
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise UserError(f"{preview_json(_printable(texts))} is not a text; give a text, or a list of them")
    items = list(texts)
    for item in items:
        if not isinstance(item, str):
            raise UserError(f"{preview_json(_printable(item))} is not a text; give a text, or a list of them")
    return items, False


def _read_examples(task: TaskConfig, path: Path) -> ExampleReader[Any]:
    if isinstance(task, QuestionAnswering):
        return ExampleReader(path, read_questions(path, None, task.fill_template))
    if isinstance(task, TokenClassification):
        if _is_json_file(path) or (is_plain_text(path) and not is_conll(path, task.labels)):
            return ExampleReader(path, read_examples(path, partial(_parse_sentence_row, task), task.columns))
        return ExampleReader(path, map(_remove_tags, read_sentences(path, hide_tag_column(task.columns), task.fill_template)))
    hidden = {**task.columns, **dict.fromkeys(("label", "score", "negative", "target"), "")}
    return msgspec.structs.replace(task, columns=hidden, skip_bad=False).read(path)


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
        return replace(request, example=replace(request.example, guides=task.fill_template(row.get_cell)))
    if isinstance(task, QuestionAnswering):
        question, context = replace_surrogates(values["question"]), replace_surrogates(values["context"])
        return Request(QuestionAnsweringExample(question=question, context=context, guides=task.fill_template(row.get_cell)))
    try:
        return Request(replace(task._parse_row(row), source="", line=0))
    except BadRow as error:
        raise UserError(f"a {tag} model cannot be asked so: {error_without_hint(error).split(': ', 1)[-1]}") from None


def _check_fields(task: TaskConfig, values: dict[str, Any]) -> None:
    """Raise if a required field is missing, a field is unknown, or a value has the wrong type."""
    required, optional, usage = REQUEST_FIELDS[type(task)]
    tag, has_template = task.__struct_config__.tag, getattr(task, "template", "")
    required = ("tokens",) if isinstance(task, TokenClassification) and "tokens" in values else required
    if isinstance(task, TextPairTask) and "text_b" in task.columns:  # the model was fine-tuned on pairs
        required += ("text_b",)
    problems = [f"{name} is missing" for name in required if name not in values]
    problems += [
        f"{name} is not known" for name in values if name not in (*required, *optional, *LABEL_FIELDS) and not has_template
    ]
    for name in required + optional:
        value, is_text_list = values.get(name), name in ("tokens", "options")
        is_valid_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if value is not None and not (is_valid_list if is_text_list else isinstance(value, str)):
            problems.append(
                f"{name} is {preview_json(_printable(value))}, not {'a list of texts' if is_text_list else 'a text'}"
            )
    if problems:
        raise UserError(f"a {tag} model cannot be asked so: {problems[0]}; ask for example {usage}")


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
        return replace(request, example=replace(request.example, guides=task.fill_template(row.get_cell)))
    if not isinstance(tokens := row.require("tokens"), list) or not all(isinstance(token, str) for token in tokens):
        raise row.error("tokens is not a list of texts")
    fields: dict[str, Any] = {"document": str(row.get("document")), "guides": task.fill_template(row.get_cell)}
    return Request(Sentence(tokens=tuple(tokens), source=str(row.path), line=row.line, **fields))


def _remove_tags(sentence: Sentence | BadRow) -> Sentence | BadRow:
    return sentence if isinstance(sentence, BadRow) else replace(sentence, tags=None)
