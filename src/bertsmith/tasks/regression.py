"""What number a text or a pair of texts has: how alike two sentences are, how good a film was."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..metrics import scores as scores_
from .base import Answer, Encoded, Scores, averaged
from .table_rows import Row
from .text_pairs import Labelled, OfTexts


@dataclass(frozen=True)
class Rated(Labelled[float]):
    """A text, or a pair, and its number if it is known."""


@dataclass(frozen=True)
class Value(Answer):
    value: float


class Regress(OfTexts[Rated], frozen=True):
    outputs: ClassVar[int] = 1

    def fitted(self, examples: Sequence[Rated]) -> "Regress":
        """With its guide tokens: there is nothing else to learn but that every example has its number."""
        self._truths(examples)
        return msgspec.structs.replace(self, guides=self.met(examples))

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Rated]) -> list[Value]:
        """The score is the number; those of windows are averaged."""
        return [Value(value) for value in averaged(scores, encoded, len(examples))[:, 0].tolist()]

    def judge(self, answers: Sequence[Value], examples: Sequence[Rated]) -> dict[str, float]:
        """Correlations are nan where all answers, or all truths, are the same."""
        given, true = np.array([one.value for one in answers]), self._truths(examples)
        return {name: float(scores_.METRICS[name](given, true)) for name in ("pearson", "spearman")}

    def _example(self, row: Row) -> Rated:
        """A label that is not a finite number is a bad row."""
        return Rated(**self._texts(row), label=row.number("label"))

    def _targets(self, examples: Sequence[Rated]) -> NDArray[np.float32]:
        return self._truths(examples).astype(np.float32)

    def _truths(self, examples: Sequence[Rated]) -> NDArray[np.float64]:
        return np.array([self._label(example) for example in examples], np.float64)
