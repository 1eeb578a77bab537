"""Calibration: expected calibration error, NLL and reliability bins, with and without temperature scaling (Guo et al. 2017)."""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..metrics.calibration import ReliabilityBin, expected_calibration_error, reliability_bins
from ..tasks import MultipleChoice, QuestionAnswering, TextClassification
from .evaluate import Evaluation

Floats = NDArray[np.float64]


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
    task = evaluation.task
    if isinstance(task, TextClassification):
        assert evaluation.logits is not None
        unscaled_task = msgspec.structs.replace(task, temperature=1.0)
        calibrated, uncalibrated = (
            _label_calibration(version, version.probabilities(evaluation.logits), evaluation.examples)
            for version in (task, unscaled_task)
        )
        return Calibration(calibrated, uncalibrated, task.temperature)
    if isinstance(task, MultipleChoice):
        probs = [prediction.scores for prediction in evaluation.predictions]
        labels = [example.label for example in evaluation.examples]
        correct = np.array([pred.choice == label for pred, label in zip(evaluation.predictions, labels, strict=True)])
        target_probs = np.array([row[label] for row, label in zip(probs, labels, strict=True)])
        return Calibration(_calibration_stats(np.array([max(row) for row in probs]), correct, target_probs))
    if isinstance(task, QuestionAnswering):
        confidences = np.clip([prediction.score for prediction in evaluation.predictions], 0, 1)
        exact_match = task.per_example_scores(evaluation.predictions, evaluation.examples)[0]
        return Calibration(_calibration_stats(confidences, exact_match))
    return None


def _label_calibration(task: TextClassification, probs: Floats, examples: list[Any]) -> CalibrationStats:
    """probs: (examples, labels). In multi-label tasks every (example, label) pair counts as one binary prediction."""
    if task.multi_label:
        gold = task.label_matrices([], examples)[1]
        return _calibration_stats(probs.ravel(), gold.ravel(), np.where(gold, probs, 1 - probs).ravel())
    label_ids = np.array([task.labels.index(example.label) for example in examples])
    return _calibration_stats(probs.max(-1), probs.argmax(-1) == label_ids, probs[np.arange(len(probs)), label_ids])


def _calibration_stats(confidences: Floats, correct: NDArray[Any], target_probs: Floats | None = None) -> CalibrationStats:
    nll = None if target_probs is None else float(-np.log(np.maximum(target_probs, 1e-12)).mean())
    return CalibrationStats(
        expected_calibration_error(confidences, correct), nll, reliability_bins(confidences, correct, num_bins=10)
    )
