"""Which of several options goes with a context: what happens next, which answer is right."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import Count
from ..errors import BadInput
from ..metrics import scores as scores_
from ..tokenization.tables import KNOWN, is_json
from ..tokenization.tokenizer import Tokenizer
from .base import Answer, Encoded, Example, Head, Long, Scores, averaged, sequences
from .special_tokens import Guided
from .table_rows import Kept, Row, examples, unlabelled


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


class Choose(Guided, frozen=True):
    long: Annotated[
        Long, "texts that do not fit: cut at the end, or windows whose scores are averaged, or that the model joins"
    ] = "truncate"
    stride: Annotated[Count, "tokens from the start of one window to the next"] = 256
    columns: Annotated[dict[str, str], "what context, question, options and label are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head: ClassVar[Head] = "text"
    outputs: ClassVar[int] = 1
    slots: ClassVar[tuple[str, ...]] = ("context", "options")  # the question is with the option
    anchored: ClassVar[int | None] = 1  # question and option

    def read(self, path: Path) -> Kept[Question]:
        """Lines of .jsonl: {"context": ..., "question": ..., "options": [...], "label": 0}; question and label may miss."""
        if not is_json(path):
            raise BadInput(f"{path}: options are a list, which no table holds; of {KNOWN} give .jsonl")
        return Kept(path, examples(path, self._example, self.columns), self.skip_bad)

    def fitted(self, examples: Sequence[Question]) -> "Choose":
        """With its guide tokens: there is nothing else to learn but that every example has its label."""
        self._truths(examples)
        return msgspec.structs.replace(self, guides=self.met(examples))

    def encode(self, examples: Sequence[Question], tokenizer: Tokenizer, length: int) -> Encoded:
        """One sequence an option, [CLS] context [SEP] question option [SEP], the longer side cut at its end; or its windows.

        Targets `label`: a number an example, counted within the options of that example (`Encoded.example`). An option
        begins where a fact has number 0.
        """
        pairs = [(one.context, _asked(one, option)) for one in examples for option in one.options]
        beside = zip(self.beside(examples, tokenizer), examples, strict=True)
        guides = [guide for guide, one in beside for _ in one.options]
        encoded = sequences(pairs, tokenizer, length, self.long, self.stride, guides)
        owners = np.repeat(np.arange(len(examples)), [len(one.options) for one in examples])[encoded.example]
        known = bool(examples) and all(one.label is not None for one in examples)
        return replace(encoded, example=owners, targets={"label": self._truths(examples)} if known else {})

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Question]) -> list[Choice]:
        """The score of an option is the mean over its windows."""
        if not examples:
            return []
        option = np.cumsum([part.number == 0 for part in encoded.facts]) - 1
        ends = np.cumsum([len(one.options) for one in examples])
        rows = averaged(scores, replace(encoded, example=option), int(ends[-1]))[:, 0]
        return [_choice(one, row) for one, row in zip(examples, np.split(rows, ends[:-1]), strict=True)]

    def judge(self, answers: Sequence[Choice], examples: Sequence[Question]) -> dict[str, float]:
        return {"accuracy": float(scores_.accuracy([one.choice for one in answers], self._truths(examples)))}

    def _example(self, row: Row) -> Question:
        options, label = row.need("options"), row.get("label")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(one, str) for one in options):
            raise row.bad("options is not a list of two texts or more")
        if label is not None and (type(label) is not int or not 0 <= label < len(options)):
            raise row.bad(f"label is {label!r}, not the number of an option from 0 to {len(options) - 1}")
        question = row.text("question") if row.get("question") is not None else None
        context, guides = row.text("context"), self.named(row.cell)
        return Question(context, tuple(options), question, label, source=str(row.path), line=row.line, guides=guides)

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
