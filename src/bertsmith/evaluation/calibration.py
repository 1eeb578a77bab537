"""Whether a model is right as often as it says it is, before and after its temperature."""

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
    """How far confidence is from accuracy, by and large and bin by bin; `loss` is the nats a true answer costs."""

    error: float
    loss: float | None
    bins: list[ReliabilityBin]


@dataclass(frozen=True)
class Calibration:
    """`before` is without the temperature; None where the task has none."""

    after: CalibrationStats
    before: CalibrationStats | None = None
    temperature: float | None = None


def compute_calibration(evaluation: Evaluation) -> Calibration | None:
    """None for tasks whose answers come without a confidence."""
    task = evaluation.task
    if isinstance(task, TextClassification):
        assert evaluation.logits is not None
        bare = msgspec.structs.replace(task, temperature=1.0)
        after, before = (
            _label_calibration(one, one.probabilities(evaluation.logits), evaluation.examples) for one in (task, bare)
        )
        return Calibration(after, before, task.temperature)
    if isinstance(task, MultipleChoice):
        rows = [one.scores for one in evaluation.predictions]
        truths = [one.label for one in evaluation.examples]
        hit = np.array([one.choice == truth for one, truth in zip(evaluation.predictions, truths, strict=True)])
        true = np.array([row[truth] for row, truth in zip(rows, truths, strict=True)])
        return Calibration(_calibration_stats(np.array([max(row) for row in rows]), hit, true))
    if isinstance(task, QuestionAnswering):
        sure = np.clip([one.score for one in evaluation.predictions], 0, 1)
        return Calibration(_calibration_stats(sure, task.per_example_scores(evaluation.predictions, evaluation.examples)[0]))
    return None


def _label_calibration(task: TextClassification, probs: Floats, examples: list[Any]) -> CalibrationStats:
    """With many labels, every label of every example is a belief of its own: how probable, and whether it holds."""
    if task.many:
        true = task.label_matrices([], examples)[1]
        return _calibration_stats(probs.ravel(), true.ravel(), np.where(true, probs, 1 - probs).ravel())
    truths = np.array([task.labels.index(one.label) for one in examples])
    return _calibration_stats(probs.max(-1), probs.argmax(-1) == truths, probs[np.arange(len(probs)), truths])


def _calibration_stats(confidences: Floats, correct: NDArray[Any], target_probs: Floats | None = None) -> CalibrationStats:
    loss = None if target_probs is None else float(-np.log(np.maximum(target_probs, 1e-12)).mean())
    return CalibrationStats(
        expected_calibration_error(confidences, correct), loss, reliability_bins(confidences, correct, num_bins=10)
    )
