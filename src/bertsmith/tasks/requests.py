"""What a person asks a model, in plain values or a file, as examples of its task; truths beside it are not looked at."""

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
from .conll_files import Sentence, hide_tag_column, is_conll, read_sentences
from .special_tokens import TemplateTask
from .squad_files import QuestionAnsweringExample, read_questions
from .table_rows import BadRow, ExampleReader, ExampleRow, is_plain_text, read_examples
from .text_pairs import TextPairTask
from .token_classification import sentence_from_text

INLINE_PATH = Path("question.jsonl")  # where a question stands that is in no file
LABEL_FIELDS = ("label", "tags", "answers", "score", "span", "negative", "target")


class RequestFields(NamedTuple):
    """The fields of a question: those it must have, those it may have, and how one looks."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    usage: str


REQUEST_FIELDS: dict[type, RequestFields] = {
    TextClassification: RequestFields(("text",), ("text_b",), 'model("a fine film")'),
    TextRegression: RequestFields(("text",), ("text_b",), 'model("a fine film")'),
    TextSimilarity: RequestFields(("text", "text_b"), (), 'model("a fine film", "a good film")'),
    Seq2Seq: RequestFields(("text",), (), 'model("a text to be answered")'),
    MultipleChoice: RequestFields(("context", "options"), ("question",), 'model(context="It rains.", options=["wet", "dry"])'),
    QuestionAnswering: RequestFields(("question", "context"), (), 'model(question="Who sings?", context="She sings.")'),
    TokenClassification: RequestFields(("text",), ("tokens",), 'model("Ada was here") or model(tokens=["Ada", "was", "here"])'),
}


@dataclass(frozen=True)
class Request:
    """An example, and the text it was made of where its answer is told in characters of that."""

    example: Any
    text: str | None = None

    def to_dict(self, prediction: Any) -> dict[str, Any]:
        """The answer as plain values; of a text that was split into tokens, with characters for entities."""
        values: dict[str, Any] = to_dict(prediction)
        if self.text is None:
            return values
        spans = sentence_from_text(self.text)[1]
        found = [{"start": spans[one["start"]][0], "end": spans[one["end"] - 1][1], "type": one["type"]} for one in
                 values["entities"]]  # fmt: skip
        entities = [{**one, "text": self.text[one["start"] : one["end"]]} for one in found]
        return {"entities": entities, "tokens": list(self.example.tokens), "tags": list(values["tags"])}


def parse_requests(task: TaskConfig, inputs: Any, text_b: Any, fields: Mapping[str, Any]) -> tuple[list[Request], bool]:
    """The examples, and whether one was asked for, not a list of them."""
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
    several = [_drop_none(one if isinstance(one, Mapping) else {"text": one}) for one in inputs]
    return [
        _parse_request(task, one if b is None else one | {"text_b": b}) for one, b in zip(several, seconds, strict=True)
    ], False


def read_requests(task: TaskConfig, path: Path, skip_bad: bool = False) -> Iterator[Request | BadRow]:
    """The examples of a file: labels that are missing, wrong or never heard of make no difference.

    A row that cannot be used is raised, or with `skip_bad` given in its place, whatever training did with such rows.
    """
    found = _read_examples(task, path)
    for one in found.iter_with_errors() if skip_bad else found:
        yield one if isinstance(one, BadRow | Request) else Request(one)


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
    kind = task.__struct_config__.tag
    _check_fields(task, values)
    # Columns that guide tokens are made of may be left out of a question, and a truth may be left in.
    columns = dict.fromkeys(task.template_columns() if isinstance(task, TemplateTask) else ())
    here = {name: list(value) if isinstance(value, tuple) else value for name, value in {**columns, **values}.items()}
    row = ExampleRow({name: value for name, value in here.items() if name not in LABEL_FIELDS}, INLINE_PATH, 1)
    if isinstance(task, TokenClassification):
        given = Request(Sentence(tokens=tuple(values["tokens"]))) if "tokens" in values else _request_from_text(values["text"])
        return replace(given, example=replace(given.example, guides=task.fill_template(row.get_cell)))
    if isinstance(task, QuestionAnswering):
        asked, context = replace_surrogates(values["question"]), replace_surrogates(values["context"])
        return Request(QuestionAnsweringExample(question=asked, context=context, guides=task.fill_template(row.get_cell)))
    try:
        return Request(replace(task._parse_row(row), source="", line=0))
    except BadRow as fault:
        raise UserError(f"a {kind} model cannot be asked so: {error_without_hint(fault).split(': ', 1)[-1]}") from None


def _check_fields(task: TaskConfig, values: dict[str, Any]) -> None:
    """Every field is there, none is unheard of, texts are texts."""
    must, may, like = REQUEST_FIELDS[type(task)]
    kind, guided = task.__struct_config__.tag, getattr(task, "template", "")
    must = ("tokens",) if isinstance(task, TokenClassification) and "tokens" in values else must
    if isinstance(task, TextPairTask) and "text_b" in task.columns:  # it was taught pairs
        must += ("text_b",)
    wrong = [f"{name} is missing" for name in must if name not in values]
    wrong += [f"{name} is not known" for name in values if name not in (*must, *may, *LABEL_FIELDS) and not guided]
    for name in must + may:
        value, texts = values.get(name), name in ("tokens", "options")
        listed = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        if value is not None and not (listed if texts else isinstance(value, str)):
            wrong.append(f"{name} is {preview_json(_printable(value))}, not {'a list of texts' if texts else 'a text'}")
    if wrong:
        raise UserError(f"a {kind} model cannot be asked so: {wrong[0]}; ask for example {like}")


def _printable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _request_from_text(text: str) -> Request:
    return Request(sentence_from_text(text)[0], text)


def _is_json_file(path: Path) -> bool:
    try:
        return not is_plain_text(path) and is_json(path)
    except UserError:  # columns of tokens and tags come under any name
        return False


def _parse_sentence_row(task: TokenClassification, row: ExampleRow) -> Request:
    """Of a line of JSON: tokens as they are given, or a text to be split; of a line of text, that text."""
    if row.get("tokens") is None and isinstance(row.get("text"), str):
        split = _request_from_text(row.get("text"))
        return replace(split, example=replace(split.example, guides=task.fill_template(row.get_cell)))
    if not isinstance(tokens := row.require("tokens"), list) or not all(isinstance(one, str) for one in tokens):
        raise row.error("tokens is not a list of texts")
    facts: dict[str, Any] = {"document": str(row.get("document")), "guides": task.fill_template(row.get_cell)}
    return Request(Sentence(tokens=tuple(tokens), source=str(row.path), line=row.line, **facts))


def _remove_tags(sentence: Sentence | BadRow) -> Sentence | BadRow:
    return sentence if isinstance(sentence, BadRow) else replace(sentence, tags=None)


def read_texts(path: Path, columns: Mapping[str, str], skip_bad: bool = False) -> Iterator[str | BadRow]:
    """The text of every row, or every line of a .txt; with `skip_bad` also, in its place, what is wrong with a row."""
    found = ExampleReader(path, read_examples(path, lambda row: row.get_text("text"), columns))
    return found.iter_with_errors() if skip_bad else found


def read_valid_texts(path: Path, columns: Mapping[str, str]) -> Iterator[str]:
    """The text of every row, or every line of a .txt; none may be bad."""
    for one in read_texts(path, columns, skip_bad=True):
        if isinstance(one, BadRow):
            raise UserError(f"{error_without_hint(one)}; mend the row")
        yield one


def error_without_hint(error: BadRow) -> str:
    """What is wrong and where, without the way out."""
    return str(error).split("; mend")[0]


def as_text_list(texts: Iterable[str] | str) -> tuple[list[str], bool]:
    """A list of texts, and whether it was one."""
    if isinstance(texts, str):
        return [texts], True
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise UserError(f"{preview_json(_printable(texts))} is not a text; give a text, or a list of them")
    some = list(texts)
    for one in some:
        if not isinstance(one, str):
            raise UserError(f"{preview_json(_printable(one))} is not a text; give a text, or a list of them")
    return some, False
