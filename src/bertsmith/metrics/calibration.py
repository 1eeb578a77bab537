"""Calibration of probabilities: reliability bins, expected calibration error, temperature scaling (Guo et al. 2017)."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserError


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions with confidence in (low, high]: their number, mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def reliability_bins(confidence: ArrayLike, correct: ArrayLike, num_bins: int = 15) -> list[ReliabilityBin]:
    """The non-empty bins of equal width over [0, 1]; a confidence on an edge belongs to the lower bin."""
    confidences, hits = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    edges = np.linspace(0, 1, num_bins + 1)
    bin_index = np.clip(np.searchsorted(edges, confidences, side="left") - 1, 0, num_bins - 1)
    members = [(index, bin_index == index) for index in np.unique(bin_index)]
    return [
        ReliabilityBin(
            float(edges[index]),
            float(edges[index + 1]),
            int(is_member.sum()),
            float(confidences[is_member].mean()),
            float(hits[is_member].mean()),
        )
        for index, is_member in members
    ]


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, num_bins: int = 15) -> float:
    """Expected calibration error: sum over bins of count / n * |accuracy - confidence|."""
    bins = reliability_bins(confidence, correct, num_bins)
    return sum(bin_.count * abs(bin_.confidence - bin_.accuracy) for bin_ in bins) / sum(bin_.count for bin_ in bins)


def fit_temperature(
    logits: ArrayLike, labels: ArrayLike, min_temperature: float = 0.01, max_temperature: float = 100.0
) -> float:
    """Temperature T that maximizes the likelihood of labels (n,) under softmax(logits / T), logits (n, labels).

    The log-likelihood is concave in 1 / T, so bisection on the sign of its derivative finds the maximum. If every
    prediction is correct there is none, and the result is `min_temperature`. Predictions do not change.
    """
    rows, label_ids = np.asarray(logits, np.float64), np.asarray(labels, np.int64)
    if rows.ndim != 2 or len(rows) != len(label_ids) or not len(rows):
        raise UserError(f"logits of shape {rows.shape} do not match {len(label_ids)} labels; expected (examples, labels)")
    rows = rows - rows.max(-1, keepdims=True)
    label_logits = np.take_along_axis(rows, label_ids[:, None], -1)[:, 0]
    low, high = math.log(1 / max_temperature), math.log(1 / min_temperature)
    for _ in range(60):
        middle = (low + high) / 2
        weights = np.exp(rows * math.exp(middle))
        derivative = (label_logits - (weights * rows).sum(-1) / weights.sum(-1)).mean()
        low, high = (middle, high) if derivative > 0 else (low, middle)
    return math.exp(-(low + high) / 2)
