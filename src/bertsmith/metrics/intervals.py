"""Scores by name, each over one set of answers or over many at once, with what chance could have made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BadInput
from ..rng import Stream, below, bits
from .scores import COUNTED, METRICS, Array, Metric, _aligned, _coded, _named, f1

AT_ONCE = 1 << 22  # values resampled at a time


@dataclass(frozen=True)
class Interval:
    """A score, and the range it would be in, mostly, for other examples of the same kind."""

    value: float
    low: float
    high: float


def interval(
    metric: str | Metric, answers: Sequence[Any] | Array, truths: Sequence[Any] | Array, seed: int,
    samples: int = 1000, level: float = 0.95,
) -> Interval:  # fmt: skip
    """A score with its bootstrap interval (percentiles); resamples in which it is not defined are left out.

    A metric of this file is computed for many resamples at once; another is called with lists, once a resample.
    """
    return _between(_resampled(metric, [answers], truths, seed, samples)[0], level)


def difference(
    metric: str | Metric, answers: Sequence[Any] | Array, others: Sequence[Any] | Array, truths: Sequence[Any] | Array,
    seed: int, samples: int = 1000, level: float = 0.95,
) -> Interval:  # fmt: skip
    """By how much the score of the first is above that of the others on the same examples, with its bootstrap interval."""
    first, second = np.array(_resampled(metric, [answers, others], truths, seed, samples))
    return _between((first - second).tolist(), level)


def paired(
    metric: str | Metric, answers: Sequence[Any] | Array, others: Sequence[Any] | Array, truths: Sequence[Any] | Array,
    seed: int, samples: int = 1000,
) -> float:  # fmt: skip
    """How likely chance alone makes two systems differ as much, either way: a paired bootstrap on the same examples.

    Resamples are shifted to no difference (Efron and Tibshirani 1993, 16.4); the least value is 1 / (samples + 1).
    """
    scores = np.array(_resampled(metric, [answers, others], truths, seed, samples))
    found, *drawn = scores[0] - scores[1]
    if math.isnan(found):
        return math.nan
    known = np.array([score for score in drawn if not math.isnan(score)])
    beyond = np.abs(known - found) >= abs(found) - 1e-12  # equal counts may differ in the last bit
    return float((1 + beyond.sum()) / (1 + len(known)))


def mcnemar(answers: ArrayLike, others: ArrayLike, truths: ArrayLike) -> float:
    """The exact two-sided p-value that two systems are right equally often, from where only one of them is."""
    left, right = _aligned(answers, truths)
    other, _ = _aligned(others, truths)
    only, only_other = int(((left == right) & (other != right)).sum()), int(((left != right) & (other == right)).sum())
    count, fewer = only + only_other, min(only, only_other)
    ways, total = 1, 0
    for wins in range(fewer + 1):
        total, ways = total + ways, ways * (count - wins) // (wins + 1)
    return min(1.0, 2 * total / 2**count)


def _between(scores: list[float], level: float) -> Interval:
    """The first of them, and the percentiles of the others, as far as they are numbers."""
    known = np.array([score for score in scores[1:] if not math.isnan(score)])
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2]) if len(known) else (math.nan, math.nan)
    return Interval(scores[0], float(low), float(high))


def _resampled(
    metric: str | Metric, systems: Sequence[Sequence[Any] | Array], truths: Sequence[Any] | Array, seed: int, samples: int
) -> list[list[float]]:
    """For each system its score, then its scores on resamples: the same examples for every system."""
    count = len(truths)
    if not count or any(len(answers) != count for answers in systems):
        raise BadInput(f"{[len(answers) for answers in systems]} answers cannot be held against {count} truths")
    judged = _named(metric) if isinstance(metric, str) else metric
    if getattr(judged, "func", judged) not in (*METRICS.values(), *COUNTED):
        draws = [np.arange(count), *(_drawn(count, seed, number, number + 1)[0] for number in range(samples))]
        return [[float(judged([s[i] for i in draw], [truths[i] for i in draw])) for draw in draws] for s in systems]
    arrays = [np.asarray(one) for one in (*systems, truths)]
    arrays = _coded(arrays) if judged in METRICS.values() and judged is not f1 else arrays
    step = max(1, AT_ONCE // arrays[0].size)
    scores = [[float(judged(answers, arrays[-1]))] for answers in arrays[:-1]]
    for first in range(0, samples, step):
        draw = _drawn(count, seed, first, min(first + step, samples))
        for answers, known in zip(arrays[:-1], scores, strict=True):
            known.extend(judged(answers[draw], arrays[-1][draw]).tolist())
    return scores


def _drawn(count: int, seed: int, first: int, end: int) -> NDArray[np.int64]:
    return below(bits(seed, Stream.BOOTSTRAP, np.arange(first, end)[:, None], np.arange(count)), count)
