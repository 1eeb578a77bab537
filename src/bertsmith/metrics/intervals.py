"""Bootstrap confidence intervals of metrics, and significance tests of the difference of two systems."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError
from ..rng import Stream, randint, random_bits
from .scores import COUNT_METRICS, METRICS, Array, Metric, check_shapes, encode_labels, f1, metric_by_name

MAX_RESAMPLED_VALUES = 1 << 22  # values resampled at a time, to bound memory


@dataclass(frozen=True)
class ConfidenceInterval:
    """A metric value and its confidence interval."""

    value: float
    low: float
    high: float


def bootstrap_interval(
    metric: str | Metric, predictions: Sequence[Any] | Array, references: Sequence[Any] | Array, seed: int,
    num_resamples: int = 1000, confidence_level: float = 0.95,
) -> ConfidenceInterval:  # fmt: skip
    """Percentile bootstrap interval of a metric; resamples where it is nan are ignored.

    Metrics of `scores` are computed for many resamples at once; any other is called with lists, once per resample.
    """
    return _percentile_interval(_bootstrap_scores(metric, [predictions], references, seed, num_resamples)[0], confidence_level)


def bootstrap_difference(
    metric: str | Metric,
    predictions: Sequence[Any] | Array,
    other_predictions: Sequence[Any] | Array,
    references: Sequence[Any] | Array,
    seed: int,
    num_resamples: int = 1000,
    confidence_level: float = 0.95,
) -> ConfidenceInterval:
    """Difference metric(predictions) - metric(other_predictions) with its paired bootstrap interval."""
    first, second = np.array(_bootstrap_scores(metric, [predictions, other_predictions], references, seed, num_resamples))
    return _percentile_interval((first - second).tolist(), confidence_level)


def paired_bootstrap_test(
    metric: str | Metric,
    predictions: Sequence[Any] | Array,
    other_predictions: Sequence[Any] | Array,
    references: Sequence[Any] | Array,
    seed: int,
    num_resamples: int = 1000,
) -> float:
    """Two-sided p-value of the paired bootstrap test that two systems have the same score.

    Differences of resamples are shifted to mean 0 (Efron and Tibshirani 1993, section 16.4); the smallest p-value is
    1 / (num_resamples + 1).
    """
    scores = np.array(_bootstrap_scores(metric, [predictions, other_predictions], references, seed, num_resamples))
    difference, *resampled = scores[0] - scores[1]
    if math.isnan(difference):
        return math.nan
    defined = np.array([score for score in resampled if not math.isnan(score)])
    beyond = np.abs(defined - difference) >= abs(difference) - 1e-12  # tolerance: equal counts may differ in the last bit
    return float((1 + beyond.sum()) / (1 + len(defined)))


def mcnemar(predictions: ArrayLike, other_predictions: ArrayLike, references: ArrayLike) -> float:
    """Exact two-sided McNemar test that two systems have equal accuracy, from the examples where only one is correct."""
    predicted, gold = check_shapes(predictions, references)
    other, _ = check_shapes(other_predictions, references)
    num_only_first, num_only_second = (
        int(((predicted == gold) & (other != gold)).sum()),
        int(((predicted != gold) & (other == gold)).sum()),
    )
    num_discordant, smaller = num_only_first + num_only_second, min(num_only_first, num_only_second)
    num_ways, total = 1, 0
    for wins in range(smaller + 1):
        total, num_ways = total + num_ways, num_ways * (num_discordant - wins) // (wins + 1)
    return min(1.0, 2 * total / 2**num_discordant)


def _percentile_interval(scores: list[float], confidence_level: float) -> ConfidenceInterval:
    """`scores[0]` with the percentiles of the others, ignoring nan."""
    defined = np.array([score for score in scores[1:] if not math.isnan(score)])
    low, high = (
        np.quantile(defined, [(1 - confidence_level) / 2, (1 + confidence_level) / 2]) if len(defined) else (math.nan, math.nan)
    )
    return ConfidenceInterval(scores[0], float(low), float(high))


def _bootstrap_scores(
    metric: str | Metric,
    systems: Sequence[Sequence[Any] | Array],
    references: Sequence[Any] | Array,
    seed: int,
    num_resamples: int,
) -> list[list[float]]:
    """Per system: its score, then its scores on the resamples, which are the same for every system."""
    num_examples = len(references)
    if not num_examples or any(len(predicted) != num_examples for predicted in systems):
        raise UserError(f"{[len(predicted) for predicted in systems]} predictions do not match {num_examples} references")
    compute = metric_by_name(metric) if isinstance(metric, str) else metric
    if getattr(compute, "func", compute) not in (*METRICS.values(), *COUNT_METRICS):
        resamples = [
            np.arange(num_examples),
            *(_resample_indices(num_examples, seed, number, number + 1)[0] for number in range(num_resamples)),
        ]
        return [
            [float(compute([s[i] for i in indices], [references[i] for i in indices])) for indices in resamples]
            for s in systems
        ]
    arrays = [np.asarray(values) for values in (*systems, references)]
    arrays = encode_labels(arrays) if compute in METRICS.values() and compute is not f1 else arrays
    step = max(1, MAX_RESAMPLED_VALUES // arrays[0].size)
    scores = [[float(compute(predicted, arrays[-1]))] for predicted in arrays[:-1]]
    for start in range(0, num_resamples, step):
        indices = _resample_indices(num_examples, seed, start, min(start + step, num_resamples))
        for predicted, system_scores in zip(arrays[:-1], scores, strict=True):
            system_scores.extend(compute(predicted[indices], arrays[-1][indices]).tolist())
    return scores


def _resample_indices(num_examples: int, seed: int, start: int, stop: int) -> NDArray[np.int64]:
    return randint(random_bits(seed, Stream.BOOTSTRAP, np.arange(start, stop)[:, None], np.arange(num_examples)), num_examples)
