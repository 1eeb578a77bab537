"""Scores by name, each over one set of answers or over many at once, with what chance could have made of them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserError


@dataclass(frozen=True)
class ReliabilityBin:
    """Answers of about the same confidence: how sure they were, and how often right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def reliability_bins(confidence: ArrayLike, correct: ArrayLike, num_bins: int = 15) -> list[ReliabilityBin]:
    """The bins, of equal width over 0 to 1, that hold any answer; a confidence on an edge belongs below it."""
    sure, hit = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    edges = np.linspace(0, 1, num_bins + 1)
    place = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, num_bins - 1)
    inside = [(number, place == number) for number in np.unique(place)]
    return [
        ReliabilityBin(float(edges[n]), float(edges[n + 1]), int(here.sum()), float(sure[here].mean()), float(hit[here].mean()))
        for n, here in inside
    ]


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, num_bins: int = 15) -> float:
    """Expected calibration error: how far confidence is from accuracy, over the bins by their counts."""
    found = reliability_bins(confidence, correct, num_bins)
    return sum(one.count * abs(one.confidence - one.accuracy) for one in found) / sum(one.count for one in found)


def fit_temperature(
    logits: ArrayLike, labels: ArrayLike, min_temperature: float = 0.01, max_temperature: float = 100.0
) -> float:
    """What to divide scores (n, labels) by before softmax so that the true labels (n,) are likeliest; no answer changes.

    The likelihood has one peak in 1 / temperature, found by halving where its slope changes sign. Scores that are all
    right would be sharpened without end: `least` is where that stops.
    """
    rows, places = np.asarray(logits, np.float64), np.asarray(labels, np.int64)
    if rows.ndim != 2 or len(rows) != len(places) or not len(rows):
        raise UserError(f"scores of shape {rows.shape} do not go with {len(places)} labels; they should be (examples, labels)")
    rows = rows - rows.max(-1, keepdims=True)
    true = np.take_along_axis(rows, places[:, None], -1)[:, 0]
    low, high = math.log(1 / max_temperature), math.log(1 / min_temperature)
    for _ in range(60):
        middle = (low + high) / 2
        weights = np.exp(rows * math.exp(middle))
        slope = (true - (weights * rows).sum(-1) / weights.sum(-1)).mean()
        low, high = (middle, high) if slope > 0 else (low, middle)
    return math.exp(-(low + high) / 2)
