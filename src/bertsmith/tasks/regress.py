"""What number a text or a pair of texts has: how alike two sentences are, how good a film was."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..config import Count
from ..text.tokenizer import Tokenizer
from .base import Answer, Encoded, Example, Head, Joint, Long, Pair, Scores, averaged, by_row, paired
from .guides import Guided
from .kept import Kept
from .tables import Row, examples, unlabelled


@dataclass(frozen=True)
class Rated(Example):
    """A text, or a pair, and its number if it is known."""

    text: str
    text_b: str | None = None
    label: float | None = None


@dataclass(frozen=True)
class Value(Answer):
    value: float


class Regress(Guided, frozen=True):
    pair: Annotated[Pair, "text and text_b: joint, in one sequence, or cross, each by itself, joined by attention"] = Joint()
    long: Annotated[
        Long, "texts that do not fit: cut at the end, or windows whose scores are averaged, or that the model joins"
    ] = "truncate"
    stride: Annotated[Count, "tokens from the start of one window to the next"] = 256
    hex: Annotated[bool, "texts are bytes written in hex; found in the model's tokenizer"] = False
    columns: Annotated[dict[str, str], "what text, text_b and label are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head: ClassVar[Head] = "text"
    outputs: ClassVar[int] = 1

    def read(self, path: Path) -> Kept[Rated]:
        """Rows of .tsv, .csv or .jsonl; a label that is not a finite number is a bad row."""
        return Kept(path, examples(path, self._example, self.columns, self.hex), self.skip_bad)

    def fitted(self, examples: Sequence[Rated]) -> "Regress":
        """With its guide tokens: there is nothing else to learn but that every example has its number."""
        self._truths(examples)
        return msgspec.structs.replace(self, guides=self.met(examples))

    def encode(self, examples: Sequence[Rated], tokenizer: Tokenizer, length: int) -> Encoded:
        """Targets `label`: a number for each row of scores."""
        encoded = paired(examples, self.pair, self.beside(examples, tokenizer), tokenizer, length, self.long, self.stride)
        if not examples or any(one.label is None for one in examples):
            return encoded
        label = self._truths(examples).astype(np.float32)
        return replace(encoded, targets={"label": by_row(label, encoded)})

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Rated]) -> list[Value]:
        """The score is the number; those of windows are averaged."""
        return [Value(value) for value in averaged(scores, encoded, len(examples))[:, 0].tolist()]

    def judge(self, answers: Sequence[Value], examples: Sequence[Rated]) -> dict[str, float]:
        """Correlations are nan where all answers, or all truths, are the same."""
        given, true = np.array([one.value for one in answers]), self._truths(examples)
        return {name: float(metrics.METRICS[name](given, true)) for name in ("pearson", "spearman")}

    def _example(self, row: Row) -> Rated:
        second = row.text("text_b") if row.get("text_b") is not None or "text_b" in self.columns else None
        guides = self.named(row.cell)
        return Rated(row.text("text"), second, row.number("label"), source=str(row.path), line=row.line, guides=guides)

    def _truths(self, examples: Sequence[Rated]) -> NDArray[np.float64]:
        for example in examples:
            if example.label is None:
                raise unlabelled(example.source, example.line, "label", self.columns)
        return np.array([example.label for example in examples], np.float64)
