"""Questions about passages, from the JSON of SQuAD and CMRC, each answer where it really stands."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..tokenization.files import unpacked
from ..tokenization.tokenizer import whole
from .base import Example
from .special_tokens import Named
from .table_rows import SKIP, BadRow

_SHAPE = "give SQuAD's JSON: data > paragraphs > context and qas > id, question, answers > text, answer_start"


@dataclass(frozen=True, kw_only=True)
class Question(Example):
    """A question and the passage it is asked about; `line` is its number in the file, from 1."""

    question: str
    context: str
    id: str = ""
    answers: tuple[str, ...] | None = None  # None: not known; none at all: the passage does not say
    span: tuple[int, int] | None = None  # the characters of the first answer that stands in the passage

    @property
    def place(self) -> str:
        return f"{self.source}, question {self.id}" if self.source else "a question"


def questions(path: Path, no_answer: bool | None, named: Named = lambda value: ()) -> Iterator[Question | BadRow]:
    """Every question of a file, or what is wrong with it; those without an answer are refused unless `no_answer`.
    If that is None, answers are not looked at.

    An answer that does not stand where the file says is taken from the nearest place where it does. Guide tokens are named
    by fields of the question, of its paragraph or of its article.
    """
    number = 0
    for article in _listed(_parsed(path), "data", path, "the file"):
        for paragraph in _listed(article, "paragraphs", path, "an article"):
            for asked in _listed(paragraph, "qas", path, "a paragraph"):
                number += 1
                try:
                    found = _question(path, number, paragraph, asked, no_answer)
                    yield replace(found, guides=named(partial(_field, path, number, [asked, paragraph, article])))
                except BadRow as fault:
                    yield fault


def placed(context: str, text: str, start: int) -> int | None:
    """Where a text stands: at `start`, else at the nearest place; None if nowhere."""
    if start >= 0 and context.startswith(text, start):
        return start
    after = context.find(text, max(start, 0))
    before = context.rfind(text, 0, max(start, 0) + len(text))
    found = [place for place in (before, after) if place >= 0]
    return min(found, key=lambda place: abs(place - start), default=None)


def _field(path: Path, number: int, holders: list[dict[str, Any]], name: str) -> str:
    for holder in holders:
        if name in holder:
            value = holder[name]
            return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    raise _bad(path, number, holders[0], f"neither it nor its paragraph nor its article has a field {name!r}")


def _question(path: Path, number: int, paragraph: Any, asked: Any, no_answer: bool | None) -> Question:
    if not isinstance(asked, dict) or not isinstance(asked.get("question"), str):
        raise _bad(path, number, asked, "it has no text `question`")
    if not isinstance(paragraph.get("context"), str):
        raise _bad(path, number, asked, "its paragraph has no text `context`")
    if no_answer is None:
        asked = {name: value for name, value in asked.items() if name not in ("answers", "is_impossible")}
    context, name = whole(paragraph["context"]), str(asked.get("id", number))
    answers = None if asked.get("answers") is None else _answers(path, number, asked)
    if asked.get("is_impossible"):
        answers = []
    if answers == [] and not no_answer:
        raise BadInput(
            f"{path}, question {name} has no answer, as in SQuAD 2.0; set task.no_answer=true to learn when to say so"
        )
    span = _span(context, answers or [])
    if answers and span is None:
        raise _bad(path, number, asked, f"its answer {answers[0][0][:60]!r} does not stand in the passage")
    texts = None if answers is None else tuple(text for text, _ in answers)
    return Question(question=whole(asked["question"]), context=context, id=name, answers=texts, span=span,
                    source=str(path), line=number)  # fmt: skip


def _answers(path: Path, number: int, asked: dict[str, Any]) -> list[tuple[str, int]]:
    found = []
    for answer in asked["answers"] if isinstance(asked["answers"], list) else [asked["answers"]]:
        fields = answer if isinstance(answer, dict) else {}
        text, start = fields.get("text"), fields.get("answer_start", -1)
        if not isinstance(text, str) or not isinstance(start, int):
            raise _bad(path, number, asked, "its answers are not objects with `text` and `answer_start`")
        found.append((whole(text), start))
    return found


def _span(context: str, answers: list[tuple[str, int]]) -> tuple[int, int] | None:
    for text, given in answers:
        if text.strip() and (start := placed(context, text, given)) is not None:
            return start, start + len(text)
    return None


def _parsed(path: Path) -> Any:
    try:
        return json.loads(b"".join(data for data, _ in unpacked(path)).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 at byte {error.start:,}; {_SHAPE}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}; {_SHAPE}") from None


def _listed(value: Any, name: str, path: Path, holder: str) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get(name), list):
        raise BadInput(f"{path}: {holder} has no list `{name}`; {_SHAPE}")
    return value[name]


def _bad(path: Path, number: int, asked: Any, fault: str) -> BadRow:
    name = asked.get("id", f"number {number:,}") if isinstance(asked, dict) else f"number {number:,}"
    return BadRow(f"{path}, question {name}: {fault}; mend it, or leave such questions out by {SKIP}")
