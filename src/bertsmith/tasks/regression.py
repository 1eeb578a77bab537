"""What number a text or a pair of texts has: how alike two sentences are, how good a film was."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..metrics import scores as scores_
from .base import EncodedExamples, ModelOutputs, Prediction, average_windows
from .table_rows import ExampleRow
from .text_pairs import LabeledExample, TextPairTask


@dataclass(frozen=True)
class RegressionExample(LabeledExample[float]):
    """A text, or a pair, and its number if it is known."""


@dataclass(frozen=True)
class RegressionPrediction(Prediction):
    value: float


class TextRegression(TextPairTask[RegressionExample], frozen=True, tag="regress"):
    num_outputs: ClassVar[int] = 1

    def fit(self, examples: Sequence[RegressionExample]) -> "TextRegression":
        """With its guide tokens: there is nothing else to learn but that every example has its number."""
        self._gold_values(examples)
        return msgspec.structs.replace(self, guides=self.collect_special_tokens(examples))

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[RegressionExample]
    ) -> list[RegressionPrediction]:
        """The score is the number; those of windows are averaged."""
        return [RegressionPrediction(value) for value in average_windows(outputs, encoded, len(examples))[:, 0].tolist()]

    def compute_metrics(
        self, predictions: Sequence[RegressionPrediction], examples: Sequence[RegressionExample]
    ) -> dict[str, float]:
        """Correlations are nan where all answers, or all truths, are the same."""
        given, true = np.array([one.value for one in predictions]), self._gold_values(examples)
        return {name: float(scores_.METRICS[name](given, true)) for name in ("pearson", "spearman")}

    def _parse_row(self, row: ExampleRow) -> RegressionExample:
        """A label that is not a finite number is a bad row."""
        return RegressionExample(**self._text_fields(row), label=row.get_number("label"))

    def _targets(self, examples: Sequence[RegressionExample]) -> NDArray[np.float32]:
        return self._gold_values(examples).astype(np.float32)

    def _gold_values(self, examples: Sequence[RegressionExample]) -> NDArray[np.float64]:
        return np.array([self._require_label(example) for example in examples], np.float64)
