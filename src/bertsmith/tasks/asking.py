"""What a person asks a model, in plain values or a file, as examples of its task; truths beside it are not looked at."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..config import plain
from ..errors import BadInput
from ..text.tables import is_json, shown
from ..text.tokenizer import whole
from . import Answering, Choose, Classify, Regress, Similar, Tag, TaskConfig
from .conll import Sentence
from .kept import Kept
from .questions import Question, questions
from .tables import BadRow, Row, is_lines, rows
from .tag import sentence_of

NOWHERE = Path("question.jsonl")  # where a question stands that is in no file
TRUTHS = ("label", "tags", "answers", "score", "span", "negative")


class Shape(NamedTuple):
    """The fields of a question: those it must have, those it may have, and how one looks."""

    must: tuple[str, ...]
    may: tuple[str, ...]
    like: str


SHAPES: dict[type, Shape] = {
    Classify: Shape(("text",), ("text_b",), 'model("a fine film")'),
    Regress: Shape(("text",), ("text_b",), 'model("a fine film")'),
    Similar: Shape(("text", "text_b"), (), 'model("a fine film", "a good film")'),
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
        return [_asked(task, {name: value for name, value in values.items() if value is not None})], True
    named = dict(named)
    second = named.pop("text_b", second)
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, bytes):
        raise BadInput(f"{shown(_plainly(given))} is not a question; ask for example {SHAPES[type(task)].like}")
    if named:
        raise BadInput(f"{next(iter(named))}=... goes with one question; ask several as a list of dictionaries")
    seconds = [None] * len(given) if second is None else second
    if isinstance(seconds, str) or len(seconds) != len(given):
        raise BadInput(f"{len(given)} texts need as many second ones, as a list")
    several = [dict(one) if isinstance(one, Mapping) else {"text": one} for one in given]
    return [_asked(task, one if b is None else one | {"text_b": b}) for one, b in zip(several, seconds, strict=True)], False


def unanswered(task: TaskConfig, path: Path) -> Iterator[Asked]:
    """The examples of a file: labels that are missing, wrong or never heard of make no difference."""
    if isinstance(task, Answering):
        yield from map(Asked, Kept(path, questions(path, None, task.named), task.skip_bad))
        return
    if isinstance(task, Tag):
        yield from (
            Kept(path, _sentences(task, path), task.skip_bad)
            if _table(path)
            else (Asked(replace(one, tags=None)) for one in task.read(path))
        )
        return
    hidden = {**task.columns, **dict.fromkeys(("label", "score", "negative"), "")}
    yield from map(Asked, msgspec.structs.replace(task, columns=hidden).read(path))


def _asked(task: TaskConfig, values: dict[str, Any]) -> Asked:
    kind = task.__struct_config__.tag
    _checked(task, values)
    # Columns that guide tokens are made of may be left out of a question, and a truth may be left in.
    columns = dict.fromkeys(re.findall(r"\{([^{}]+)\}", getattr(task, "template", "")))
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
        raise BadInput(f"a {kind} model cannot be asked so: {str(fault).split(': ', 1)[-1].split('; mend')[0]}") from None


def _checked(task: TaskConfig, values: dict[str, Any]) -> None:
    """Every field is there, none is unheard of, texts are texts."""
    must, may, like = SHAPES[type(task)]
    kind, guided = task.__struct_config__.tag, getattr(task, "template", "")
    must = ("tokens",) if isinstance(task, Tag) and "tokens" in values else must
    if isinstance(task, Classify | Regress) and "text_b" in task.columns:  # it was taught pairs
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


def _sentences(task: Tag, path: Path) -> Iterator[Asked | BadRow]:
    """Of lines of JSON: tokens as they are given, or a text to be split."""
    for row in rows(path, task.columns):
        if isinstance(row, BadRow):
            yield row
        elif row.get("tokens") is None and isinstance(row.get("text"), str):
            split = _split(row.get("text"))
            yield replace(split, example=replace(split.example, guides=task.named(row.cell)))
        elif not isinstance(tokens := row.need("tokens"), list) or not all(isinstance(one, str) for one in tokens):
            yield row.bad("tokens is not a list of texts")
        else:
            facts: dict[str, Any] = {"document": str(row.get("document")), "guides": task.named(row.cell)}
            yield Asked(Sentence(tokens=tuple(tokens), source=str(path), line=row.line, **facts))


def texts_of(path: Path, columns: Mapping[str, str]) -> Iterator[str]:
    """The text of every row, or every line of a .txt."""
    for row in rows(path, columns):
        if isinstance(row, BadRow):
            raise row
        yield row.text("text")


def lines(texts: Sequence[str] | str) -> tuple[list[str], bool]:
    """A list of texts, and whether it was one."""
    if isinstance(texts, str):
        return [texts], True
    if wrong := next((one for one in texts if not isinstance(one, str)), None):
        raise BadInput(f"{shown(_plainly(wrong))} is not a text; give a text, or a list of them")
    return list(texts), False
