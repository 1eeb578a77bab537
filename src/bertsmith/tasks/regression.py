"""Text regression: a number for a text or a pair of texts, such as a rating or a similarity (STS-B)."""

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
    """A text or a pair of texts and its target value, if known."""


@dataclass(frozen=True)
class RegressionPrediction(Prediction):
    """The predicted number, on the scale of the training labels; not a probability."""

    score: float


class TextRegression(TextPairTask[RegressionExample], frozen=True, tag="regress"):
    num_outputs: ClassVar[int] = 1

    def fit(self, examples: Sequence[RegressionExample]) -> "TextRegression":
        """With its special tokens; checks that every example has a label."""
        self._gold_values(examples)
        return msgspec.structs.replace(self, special_tokens=self.collect_special_tokens(examples))

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[RegressionExample]
    ) -> list[RegressionPrediction]:
        """The single output is the score, averaged over windows."""
        return [RegressionPrediction(value) for value in average_windows(outputs, encoded, len(examples))[:, 0].tolist()]

    def compute_metrics(
        self, predictions: Sequence[RegressionPrediction], examples: Sequence[RegressionExample]
    ) -> dict[str, float]:
        """pearson and spearman correlation; nan if all predictions or all labels are equal."""
        values, gold = np.array([prediction.score for prediction in predictions]), self._gold_values(examples)
        return {name: float(scores_.METRICS[name](values, gold)) for name in ("pearson", "spearman")}

    def _parse_row(self, row: ExampleRow) -> RegressionExample:
        """A label that is not a finite number makes the row invalid."""
        return RegressionExample(**self._text_fields(row), label=row.get_number("label"))

    def _targets(self, examples: Sequence[RegressionExample]) -> NDArray[np.float32]:
        return self._gold_values(examples).astype(np.float32)

    def _gold_values(self, examples: Sequence[RegressionExample]) -> NDArray[np.float64]:
        return np.array([self._require_label(example) for example in examples], np.float64)
