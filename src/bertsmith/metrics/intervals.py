"""Scores by name, each over one set of answers or over many at once, with what chance could have made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError
from ..rng import Stream, randint, random_bits
from .scores import COUNT_METRICS, METRICS, Array, Metric, _check_shapes, _encode_labels, _metric_by_name, f1

MAX_RESAMPLED_VALUES = 1 << 22  # values resampled at a time


@dataclass(frozen=True)
class ConfidenceInterval:
    """A score, and the range it would be in, mostly, for other examples of the same kind."""

    value: float
    low: float
    high: float


def bootstrap_interval(
    metric: str | Metric, predictions: Sequence[Any] | Array, references: Sequence[Any] | Array, seed: int,
    num_resamples: int = 1000, confidence_level: float = 0.95,
) -> ConfidenceInterval:  # fmt: skip
    """A score with its bootstrap interval (percentiles); resamples in which it is not defined are left out.

    A metric of this file is computed for many resamples at once; another is called with lists, once a resample.
    """
    return _percentile_interval(_bootstrap_scores(metric, [predictions], references, seed, num_resamples)[0], confidence_level)


def bootstrap_difference(
    metric: str | Metric, predictions: Sequence[Any] | Array, other_predictions: Sequence[Any] | Array, references: Sequence[Any] | Array,
    seed: int, num_resamples: int = 1000, confidence_level: float = 0.95,
) -> ConfidenceInterval:  # fmt: skip
    """By how much the score of the first is above that of the others on the same examples, with its bootstrap interval."""
    first, second = np.array(_bootstrap_scores(metric, [predictions, other_predictions], references, seed, num_resamples))
    return _percentile_interval((first - second).tolist(), confidence_level)


def paired_bootstrap_test(
    metric: str | Metric, predictions: Sequence[Any] | Array, other_predictions: Sequence[Any] | Array, references: Sequence[Any] | Array,
    seed: int, num_resamples: int = 1000,
) -> float:  # fmt: skip
    """How likely chance alone makes two systems differ as much, either way: a paired bootstrap on the same examples.

    Resamples are shifted to no difference (Efron and Tibshirani 1993, 16.4); the least value is 1 / (samples + 1).
    """
    scores = np.array(_bootstrap_scores(metric, [predictions, other_predictions], references, seed, num_resamples))
    found, *drawn = scores[0] - scores[1]
    if math.isnan(found):
        return math.nan
    known = np.array([score for score in drawn if not math.isnan(score)])
    beyond = np.abs(known - found) >= abs(found) - 1e-12  # equal counts may differ in the last bit
    return float((1 + beyond.sum()) / (1 + len(known)))


def mcnemar(predictions: ArrayLike, other_predictions: ArrayLike, references: ArrayLike) -> float:
    """The exact two-sided p-value that two systems are right equally often, from where only one of them is."""
    left, right = _check_shapes(predictions, references)
    other, _ = _check_shapes(other_predictions, references)
    only, only_other = int(((left == right) & (other != right)).sum()), int(((left != right) & (other == right)).sum())
    count, fewer = only + only_other, min(only, only_other)
    ways, total = 1, 0
    for wins in range(fewer + 1):
        total, ways = total + ways, ways * (count - wins) // (wins + 1)
    return min(1.0, 2 * total / 2**count)


def _percentile_interval(scores: list[float], confidence_level: float) -> ConfidenceInterval:
    """The first of them, and the percentiles of the others, as far as they are numbers."""
    known = np.array([score for score in scores[1:] if not math.isnan(score)])
    low, high = (
        np.quantile(known, [(1 - confidence_level) / 2, (1 + confidence_level) / 2]) if len(known) else (math.nan, math.nan)
    )
    return ConfidenceInterval(scores[0], float(low), float(high))


def _bootstrap_scores(
    metric: str | Metric,
    systems: Sequence[Sequence[Any] | Array],
    references: Sequence[Any] | Array,
    seed: int,
    num_resamples: int,
) -> list[list[float]]:
    """For each system its score, then its scores on resamples: the same examples for every system."""
    count = len(references)
    if not count or any(len(answers) != count for answers in systems):
        raise UserError(f"{[len(answers) for answers in systems]} answers cannot be held against {count} truths")
    judged = _metric_by_name(metric) if isinstance(metric, str) else metric
    if getattr(judged, "func", judged) not in (*METRICS.values(), *COUNT_METRICS):
        draws = [np.arange(count), *(_resample_indices(count, seed, number, number + 1)[0] for number in range(num_resamples))]
        return [[float(judged([s[i] for i in draw], [references[i] for i in draw])) for draw in draws] for s in systems]
    arrays = [np.asarray(one) for one in (*systems, references)]
    arrays = _encode_labels(arrays) if judged in METRICS.values() and judged is not f1 else arrays
    step = max(1, MAX_RESAMPLED_VALUES // arrays[0].size)
    scores = [[float(judged(answers, arrays[-1]))] for answers in arrays[:-1]]
    for first in range(0, num_resamples, step):
        draw = _resample_indices(count, seed, first, min(first + step, num_resamples))
        for answers, known in zip(arrays[:-1], scores, strict=True):
            known.extend(judged(answers[draw], arrays[-1][draw]).tolist())
    return scores


def _resample_indices(num_examples: int, seed: int, start: int, stop: int) -> NDArray[np.int64]:
    return randint(random_bits(seed, Stream.BOOTSTRAP, np.arange(start, stop)[:, None], np.arange(num_examples)), num_examples)
