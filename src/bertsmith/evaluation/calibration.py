"""Whether a model is right as often as it says it is, before and after its temperature."""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..metrics.calibration import Bin, calibration_error, reliability
from ..tasks import Answering, Choose, Classify
from .evaluate import Judged

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Belief:
    """How far confidence is from accuracy, by and large and bin by bin; `loss` is the nats a true answer costs."""

    error: float
    loss: float | None
    bins: list[Bin]


@dataclass(frozen=True)
class Calibration:
    """`before` is without the temperature; None where the task has none."""

    after: Belief
    before: Belief | None = None
    temperature: float | None = None


def calibration(judged: Judged) -> Calibration | None:
    """None for tasks whose answers come without a confidence."""
    task = judged.task
    if isinstance(task, Classify):
        assert judged.raw is not None
        bare = msgspec.structs.replace(task, temperature=1.0)
        after, before = (_labels(one, one.probabilities(judged.raw), judged.examples) for one in (task, bare))
        return Calibration(after, before, task.temperature)
    if isinstance(task, Choose):
        rows = [one.scores for one in judged.answers]
        truths = [one.label for one in judged.examples]
        hit = np.array([one.choice == truth for one, truth in zip(judged.answers, truths, strict=True)])
        true = np.array([row[truth] for row, truth in zip(rows, truths, strict=True)])
        return Calibration(_belief(np.array([max(row) for row in rows]), hit, true))
    if isinstance(task, Answering):
        sure = np.clip([one.score for one in judged.answers], 0, 1)
        return Calibration(_belief(sure, task.each(judged.answers, judged.examples)[0]))
    return None


def _labels(task: Classify, rows: Floats, examples: list[Any]) -> Belief:
    """With many labels, every label of every example is a belief of its own: how probable, and whether it holds."""
    if task.many:
        true = task.held([], examples)[1]
        return _belief(rows.ravel(), true.ravel(), np.where(true, rows, 1 - rows).ravel())
    truths = np.array([task.labels.index(one.label) for one in examples])
    return _belief(rows.max(-1), rows.argmax(-1) == truths, rows[np.arange(len(rows)), truths])


def _belief(sure: Floats, hit: NDArray[Any], true: Floats | None = None) -> Belief:
    loss = None if true is None else float(-np.log(np.maximum(true, 1e-12)).mean())
    return Belief(calibration_error(sure, hit), loss, reliability(sure, hit, bins=10))
