"""Calibration: expected calibration error, NLL and reliability bins, with and without temperature scaling (Guo et al. 2017)."""

from dataclasses import dataclass

import numpy as np

from ..metrics.calibration import ReliabilityBin, expected_calibration_error, reliability_bins
from ..tasks.base import Confidences
from .evaluate import Evaluation


@dataclass(frozen=True)
class CalibrationStats:
    """`nll`: mean negative log-likelihood of the gold label in nats; `bins`: the reliability diagram."""

    expected_calibration_error: float
    nll: float | None
    bins: list[ReliabilityBin]


@dataclass(frozen=True)
class Calibration:
    """With the fitted temperature, and with temperature 1 (`uncalibrated`; None where the task has no temperature)."""

    calibrated: CalibrationStats
    uncalibrated: CalibrationStats | None = None
    temperature: float | None = None


def compute_calibration(evaluation: Evaluation) -> Calibration | None:
    """Calibration of an evaluation; None for tasks whose predictions have no confidence."""
    task, examples = evaluation.task, evaluation.examples
    if (confidences := task.confidences(evaluation.predictions, examples)) is None:
        return None
    if evaluation.logits is None:
        return Calibration(_calibration_stats(confidences))
    uncalibrated = task.confidences(task.uncalibrated_predictions(evaluation.logits), examples)
    assert uncalibrated is not None
    temperature = getattr(task, "temperature", None)
    return Calibration(_calibration_stats(confidences), _calibration_stats(uncalibrated), temperature)


def _calibration_stats(predictions: Confidences) -> CalibrationStats:
    confidences, correct, target_probs = predictions
    nll = None if target_probs is None else float(-np.log(np.maximum(target_probs, 1e-12)).mean())
    return CalibrationStats(
        expected_calibration_error(confidences, correct), nll, reliability_bins(confidences, correct, num_bins=10)
    )
