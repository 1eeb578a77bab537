"""Which of several options goes with a context: what happens next, which answer is right."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..config import Variant
from ..errors import BadInput
from ..text.tokenizer import Tokenizer
from .base import Answer, Encoded, Example, Head, Part, Scores, sequences
from .kept import Kept
from .tables import KNOWN, Row, examples, is_json, unlabelled


@dataclass(frozen=True)
class Question(Example):
    """A context, what is asked of it if anything is, and the options; `label` counts from 0."""

    context: str
    options: tuple[str, ...]
    question: str | None = None
    label: int | None = None


@dataclass(frozen=True)
class Choice(Answer):
    choice: int  # from 0
    option: str
    scores: list[float]  # how probable each option is


class Choose(Variant, frozen=True):
    columns: Annotated[dict[str, str], "what context, question, options and label are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head: ClassVar[Head] = "text"
    outputs: ClassVar[int] = 1

    def read(self, path: Path) -> Kept[Question]:
        """Lines of .jsonl: {"context": ..., "question": ..., "options": [...], "label": 0}; question and label may miss."""
        if not is_json(path):
            raise BadInput(f"{path}: options are a list, which no table holds; of {KNOWN} give .jsonl")
        return Kept(path, examples(path, self._example, self.columns), self.skip_bad)

    def fitted(self, examples: Sequence[Question]) -> "Choose":
        """Itself: there is nothing to learn but that every example has its label."""
        self._truths(examples)
        return self

    def encode(self, examples: Sequence[Question], tokenizer: Tokenizer, length: int) -> Encoded:
        """One sequence an option, [CLS] context [SEP] question option [SEP]; the longer side is cut at its end.

        Targets `label`: a number an example, counted within the options of that example (`Encoded.example`).
        """
        pairs = [(one.context, _asked(one, option)) for one in examples for option in one.options]
        encoded = sequences(pairs, tokenizer, length)
        counts = [len(one.options) for one in examples]
        facts = [Part(number, count) for count in counts for number in range(count)]
        owners = np.repeat(np.arange(len(examples)), counts)
        known = bool(examples) and all(one.label is not None for one in examples)
        return replace(encoded, example=owners, facts=facts, targets={"label": self._truths(examples)} if known else {})

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Question]) -> list[Choice]:
        rows = np.asarray(scores, np.float64)
        rows = rows[:, 0] if rows.ndim > 1 else rows
        if len(rows) != len(encoded.ids):
            raise ValueError(f"{len(rows)} scores for {len(encoded.ids)} options")
        starts = np.cumsum([len(one.options) for one in examples])[:-1]
        return [_choice(one, row) for one, row in zip(examples, np.split(rows, starts), strict=True)] if examples else []

    def judge(self, answers: Sequence[Choice], examples: Sequence[Question]) -> dict[str, float]:
        return {"accuracy": float(metrics.accuracy([one.choice for one in answers], self._truths(examples)))}

    def _example(self, row: Row) -> Question:
        options, label = row.need("options"), row.get("label")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(one, str) for one in options):
            raise row.bad("options is not a list of two texts or more")
        if label is not None and (type(label) is not int or not 0 <= label < len(options)):
            raise row.bad(f"label is {label!r}, not the number of an option from 0 to {len(options) - 1}")
        question = row.text("question") if row.get("question") is not None else None
        return Question(row.text("context"), tuple(options), question, label, source=str(row.path), line=row.line)

    def _truths(self, examples: Sequence[Question]) -> NDArray[np.int64]:
        for example in examples:
            if example.label is None:
                raise unlabelled(example.source, example.line, "label", self.columns)
        return np.array([example.label for example in examples], np.int64)


def _asked(example: Question, option: str) -> str:
    return option if example.question is None else f"{example.question} {option}"


def _choice(example: Question, scores: NDArray[np.float64]) -> Choice:
    weights = np.exp(scores - scores.max())
    best = int(scores.argmax())
    return Choice(best, example.options[best], (weights / weights.sum()).tolist())
