"""A metric as a function of per-example arrays, so that any subset or resample of examples can be scored."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import intervals, scores
from .intervals import ConfidenceInterval
from .scores import Array, Metric

BOOTSTRAP_SEED = 0  # of the resamples: the same examples and predictions always give the same interval
Z_SQUARED = 1.959964**2  # the square of the normal distribution's 97.5th percentile


@dataclass(frozen=True)
class MetricResult:
    """metric(predictions, references); the rows of both arrays are examples."""

    metric: Metric
    predictions: Array
    references: Array
    lower_is_better: bool = False

    @property
    def score(self) -> float:
        return float(self.metric(self.predictions, self.references))

    def subset(self, selection: NDArray[Any]) -> "MetricResult":
        """The same metric on some examples, given by indices or by a boolean mask."""
        return replace(self, predictions=self.predictions[selection], references=self.references[selection])

    def compute_interval(self, num_resamples: int = 1000) -> ConfidenceInterval:
        """The score with its 95% bootstrap percentile interval.

        Where all examples are correct (or all wrong), so is every resample, and the interval would have no width; the
        Wilson score bound for that many examples is used instead. A single example has no interval.
        """
        count = len(self.references)
        interval = intervals.bootstrap_interval(self.metric, self.predictions, self.references, BOOTSTRAP_SEED, num_resamples)
        if interval.low < interval.high:
            return interval
        wilson = {1.0: (count / (count + Z_SQUARED), 1.0), 0.0: (0.0, Z_SQUARED / (count + Z_SQUARED))}
        low, high = wilson.get(interval.value, (math.nan, math.nan)) if not self.lower_is_better else (math.nan, math.nan)
        return ConfidenceInterval(interval.value, low, high)


def mean_result(values: Array) -> MetricResult:
    """Mean of the values, (examples,)."""
    return MetricResult(scores.mean_score, values, np.zeros(len(values)))


def f1_result(num_correct: Array, num_predicted: Array, num_gold: Array) -> MetricResult:
    """F1 over all examples, from the counts of each, (examples,)."""
    return MetricResult(scores.f1_from_counts, np.stack([num_correct, num_predicted], -1), np.stack([num_gold, num_gold], -1))


def ratio_result(numerator: Array, denominator: Array) -> MetricResult:
    """Sum of the numerators over the sum of the denominators, (examples,) each."""
    return MetricResult(scores.ratio_of_sums, np.stack([numerator, denominator], -1), np.zeros((len(numerator), 2)))
