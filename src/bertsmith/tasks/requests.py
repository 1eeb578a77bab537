"""What a person asks a model, in plain values or a file, as examples of its task; truths beside it are not looked at."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..config import plain
from ..errors import BadInput
from ..tokenization.tables import is_json, shown
from ..tokenization.tokenizer import whole
from . import Answering, Choose, Classify, Generate, Regress, Similar, Tag, TaskConfig
from .conll_files import Sentence, is_columns, sentences, untagged
from .special_tokens import Guided
from .squad_files import Question, questions
from .table_rows import BadRow, Kept, Row, examples, is_lines
from .text_pairs import OfTexts
from .token_classification import sentence_of

NOWHERE = Path("question.jsonl")  # where a question stands that is in no file
TRUTHS = ("label", "tags", "answers", "score", "span", "negative", "target")


class Shape(NamedTuple):
    """The fields of a question: those it must have, those it may have, and how one looks."""

    must: tuple[str, ...]
    may: tuple[str, ...]
    like: str


SHAPES: dict[type, Shape] = {
    Classify: Shape(("text",), ("text_b",), 'model("a fine film")'),
    Regress: Shape(("text",), ("text_b",), 'model("a fine film")'),
    Similar: Shape(("text", "text_b"), (), 'model("a fine film", "a good film")'),
    Generate: Shape(("text",), (), 'model("a text to be answered")'),
    Choose: Shape(("context", "options"), ("question",), 'model(context="It rains.", options=["wet", "dry"])'),
    Answering: Shape(("question", "context"), (), 'model(question="Who sings?", context="She sings.")'),
    Tag: Shape(("text",), ("tokens",), 'model("Ada was here") or model(tokens=["Ada", "was", "here"])'),
}


@dataclass(frozen=True)
class Asked:
    """An example, and the text it was made of where its answer is told in characters of that."""

    example: Any
    text: str | None = None

    def told(self, answer: Any) -> dict[str, Any]:
        """The answer as plain values; of a text that was split into tokens, with characters for entities."""
        values: dict[str, Any] = plain(answer)
        if self.text is None:
            return values
        spans = sentence_of(self.text)[1]
        found = [{"start": spans[one["start"]][0], "end": spans[one["end"] - 1][1], "type": one["type"]} for one in
                 values["entities"]]  # fmt: skip
        entities = [{**one, "text": self.text[one["start"] : one["end"]]} for one in found]
        return {"entities": entities, "tokens": list(self.example.tokens), "tags": list(values["tags"])}


def asked(task: TaskConfig, given: Any, second: Any, named: Mapping[str, Any]) -> tuple[list[Asked], bool]:
    """The examples, and whether one was asked for, not a list of them."""
    if isinstance(given, str | Mapping) or given is None:
        values = {**(given if isinstance(given, Mapping) else {"text": given}), "text_b": second, **named}
        return [_asked(task, _there(values))], True
    named = dict(named)
    second = named.pop("text_b", second)
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, bytes):
        raise BadInput(f"{shown(_plainly(given))} is not a question; ask for example {SHAPES[type(task)].like}")
    if named:
        raise BadInput(f"{next(iter(named))}=... goes with one question; ask several as a list of dictionaries")
    seconds = [None] * len(given) if second is None else second
    if not isinstance(seconds, Sequence | np.ndarray) or isinstance(seconds, str) or len(seconds) != len(given):
        raise BadInput(f"{len(given)} texts need as many second ones, as a list")
    several = [_there(one if isinstance(one, Mapping) else {"text": one}) for one in given]
    return [_asked(task, one if b is None else one | {"text_b": b}) for one, b in zip(several, seconds, strict=True)], False


def unanswered(task: TaskConfig, path: Path, skip_bad: bool = False) -> Iterator[Asked | BadRow]:
    """The examples of a file: labels that are missing, wrong or never heard of make no difference.

    A row that cannot be used is raised, or with `skip_bad` given in its place, whatever training did with such rows.
    """
    found = _kept(task, path)
    for one in found.beside() if skip_bad else found:
        yield one if isinstance(one, BadRow | Asked) else Asked(one)


def _kept(task: TaskConfig, path: Path) -> Kept[Any]:
    if isinstance(task, Answering):
        return Kept(path, questions(path, None, task.named))
    if isinstance(task, Tag):
        if _table(path) or (is_lines(path) and not is_columns(path, task.labels)):
            return Kept(path, examples(path, partial(_sentence, task), task.columns))
        return Kept(path, map(_untagged, sentences(path, untagged(task.columns), task.named)))
    hidden = {**task.columns, **dict.fromkeys(("label", "score", "negative", "target"), "")}
    return msgspec.structs.replace(task, columns=hidden, skip_bad=False).read(path)


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _asked(task: TaskConfig, values: dict[str, Any]) -> Asked:
    kind = task.__struct_config__.tag
    _checked(task, values)
    # Columns that guide tokens are made of may be left out of a question, and a truth may be left in.
    columns = dict.fromkeys(task.wanted() if isinstance(task, Guided) else ())
    here = {name: list(value) if isinstance(value, tuple) else value for name, value in {**columns, **values}.items()}
    row = Row({name: value for name, value in here.items() if name not in TRUTHS}, NOWHERE, 1)
    if isinstance(task, Tag):
        given = Asked(Sentence(tokens=tuple(values["tokens"]))) if "tokens" in values else _split(values["text"])
        return replace(given, example=replace(given.example, guides=task.named(row.cell)))
    if isinstance(task, Answering):
        asked, context = whole(values["question"]), whole(values["context"])
        return Asked(Question(question=asked, context=context, guides=task.named(row.cell)))
    try:
        return Asked(replace(task._example(row), source="", line=0))
    except BadRow as fault:
        raise BadInput(f"a {kind} model cannot be asked so: {fault_of(fault).split(': ', 1)[-1]}") from None


def _checked(task: TaskConfig, values: dict[str, Any]) -> None:
    """Every field is there, none is unheard of, texts are texts."""
    must, may, like = SHAPES[type(task)]
    kind, guided = task.__struct_config__.tag, getattr(task, "template", "")
    must = ("tokens",) if isinstance(task, Tag) and "tokens" in values else must
    if isinstance(task, OfTexts) and "text_b" in task.columns:  # it was taught pairs
        must += ("text_b",)
    wrong = [f"{name} is missing" for name in must if name not in values]
    wrong += [f"{name} is not known" for name in values if name not in (*must, *may, *TRUTHS) and not guided]
    for name in must + may:
        value, texts = values.get(name), name in ("tokens", "options")
        listed = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        if value is not None and not (listed if texts else isinstance(value, str)):
            wrong.append(f"{name} is {shown(_plainly(value))}, not {'a list of texts' if texts else 'a text'}")
    if wrong:
        raise BadInput(f"a {kind} model cannot be asked so: {wrong[0]}; ask for example {like}")


def _plainly(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _split(text: str) -> Asked:
    return Asked(sentence_of(text)[0], text)


def _table(path: Path) -> bool:
    try:
        return not is_lines(path) and is_json(path)
    except BadInput:  # columns of tokens and tags come under any name
        return False


def _sentence(task: Tag, row: Row) -> Asked:
    """Of a line of JSON: tokens as they are given, or a text to be split; of a line of text, that text."""
    if row.get("tokens") is None and isinstance(row.get("text"), str):
        split = _split(row.get("text"))
        return replace(split, example=replace(split.example, guides=task.named(row.cell)))
    if not isinstance(tokens := row.need("tokens"), list) or not all(isinstance(one, str) for one in tokens):
        raise row.bad("tokens is not a list of texts")
    facts: dict[str, Any] = {"document": str(row.get("document")), "guides": task.named(row.cell)}
    return Asked(Sentence(tokens=tuple(tokens), source=str(row.path), line=row.line, **facts))


def _untagged(found: Sentence | BadRow) -> Sentence | BadRow:
    return found if isinstance(found, BadRow) else replace(found, tags=None)


def worded(path: Path, columns: Mapping[str, str], skip_bad: bool = False) -> Iterator[str | BadRow]:
    """The text of every row, or every line of a .txt; with `skip_bad` also, in its place, what is wrong with a row."""
    found = Kept(path, examples(path, lambda row: row.text("text"), columns))
    return found.beside() if skip_bad else found


def texts_of(path: Path, columns: Mapping[str, str]) -> Iterator[str]:
    """The text of every row, or every line of a .txt; none may be bad."""
    for one in worded(path, columns, skip_bad=True):
        if isinstance(one, BadRow):
            raise BadInput(f"{fault_of(one)}; mend the row")
        yield one


def fault_of(bad: BadRow) -> str:
    """What is wrong and where, without the way out."""
    return str(bad).split("; mend")[0]


def lines(texts: Iterable[str] | str) -> tuple[list[str], bool]:
    """A list of texts, and whether it was one."""
    if isinstance(texts, str):
        return [texts], True
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise BadInput(f"{shown(_plainly(texts))} is not a text; give a text, or a list of them")
    some = list(texts)
    for one in some:
        if not isinstance(one, str):
            raise BadInput(f"{shown(_plainly(one))} is not a text; give a text, or a list of them")
    return some, False
