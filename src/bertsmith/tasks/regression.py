"""Text regression: a number for a text or a pair of texts, such as a rating or a similarity (STS-B)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..metrics import scores as scores_
from ..metrics.results import MetricResult
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, LossKind, ModelOutputs, Prediction
from .mistakes import Mistake, text_spans
from .sequences import average_windows
from .slicing import SliceMasks, quartile_masks
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
    loss: ClassVar[LossKind] = "mse"
    metric_names: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    mistake_order: ClassVar[str] = "those with the largest error"

    def fit(self, examples: Sequence[RegressionExample]) -> "TextRegression":
        """With its special tokens; checks that every example has a label."""
        self._gold_values(examples)
        return msgspec.structs.replace(self, special_tokens=self.collect_special_tokens(examples))

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[RegressionExample]
    ) -> list[RegressionPrediction]:
        """The single output is the score, averaged over windows."""
        return [RegressionPrediction(value) for value in average_windows(outputs, encoded, len(examples))[:, 0].tolist()]

    def compute_metric_results(
        self, predictions: Sequence[RegressionPrediction], examples: Sequence[RegressionExample]
    ) -> dict[str, MetricResult]:
        """pearson and spearman correlation; nan if all predictions or all labels are equal."""
        values, gold = np.array([prediction.score for prediction in predictions]), self._gold_values(examples)
        return {name: MetricResult(scores_.METRICS[name], values, gold) for name in self.metric_names}

    def find_mistakes(
        self, predictions: Sequence[RegressionPrediction], examples: Sequence[RegressionExample]
    ) -> list[Mistake]:
        """Every prediction, by its absolute error."""
        mistakes = []
        for prediction, gold, example in zip(predictions, self._gold_values(examples).tolist(), examples, strict=True):
            answers, error = (f"{gold:.4g}", f"{prediction.score:.4g}"), abs(prediction.score - gold)
            mistakes.append(Mistake("number", example.location, *answers, None, error, text_spans(example.texts)))
        return mistakes

    def majority_outputs(self, examples: Sequence[RegressionExample]) -> NDArray[np.float64]:
        return np.array([float(np.mean(self._gold_values(examples)))])

    def slice_metric(self, results: Mapping[str, MetricResult]) -> tuple[str, MetricResult]:
        """Mean absolute error: a correlation is not informative within a narrow range of labels."""
        result = results[self.primary_metric]
        errors = np.abs(result.predictions - result.references)
        return "mean_absolute_error", MetricResult(scores_.mean_score, errors, np.zeros(len(errors)), lower_is_better=True)

    def target_slices(self, examples: Sequence[RegressionExample], tokenizer: Tokenizer) -> tuple[str, SliceMasks]:
        return "gold value", quartile_masks(self._gold_values(examples))

    def parse_row(self, row: ExampleRow) -> RegressionExample:
        """A label that is not a finite number makes the row invalid."""
        return RegressionExample(**self._text_fields(row), label=row.get_number("label"))

    def _targets(self, examples: Sequence[RegressionExample]) -> NDArray[np.float32]:
        return self._gold_values(examples).astype(np.float32)

    def _gold_values(self, examples: Sequence[RegressionExample]) -> NDArray[np.float64]:
        return np.array([self._require_label(example) for example in examples], np.float64)
