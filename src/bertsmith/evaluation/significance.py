"""Significance tests for two models on the same examples: paired bootstrap of every metric, McNemar's test of accuracy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..metrics import intervals
from ..metrics.intervals import ConfidenceInterval
from ..metrics.results import BOOTSTRAP_SEED
from ..tasks import Task
from .evaluate import Evaluation

CorrectMask = NDArray[np.bool_] | None  # (examples,); None for regression and similarity


@dataclass(frozen=True)
class Difference:
    """One metric of both models, with the p-values of the paired bootstrap test and, for accuracy, of McNemar's exact test."""

    name: str
    score: float
    other_score: float
    difference: ConfidenceInterval  # of score - other_score
    p_value: float
    mcnemar_p_value: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All metrics of two models, and the number of examples that both, one or neither of them predicts correctly."""

    differences: list[Difference]
    both_correct: int | None = None  # None for regression and similarity
    only_this_correct: int | None = None
    only_other_correct: int | None = None
    neither_correct: int | None = None
    lost: tuple[int, ...] = ()  # indices of examples that only the other model predicts correctly
    won: tuple[int, ...] = ()  # indices of examples that only this model predicts correctly


def compare_evaluations(evaluation: Evaluation, other: Evaluation) -> Comparison:
    """Differences `evaluation` - `other` of all shared metrics; both must be of the same task and examples."""
    _check_comparable(evaluation, other)
    # By this model's task, so that both predictions are encoded in the same order of labels.
    other_metrics = evaluation.task.compute_metric_results(other.predictions, evaluation.examples)
    correct, other_correct = (
        evaluation.task.find_correct(predictions, evaluation.examples)
        for predictions in (evaluation.predictions, other.predictions)
    )
    differences = []
    for name in (name for name in evaluation.metrics if name in other_metrics):
        result, other_result = evaluation.metrics[name], other_metrics[name]
        pair = (result.metric, result.predictions, other_result.predictions, result.references, BOOTSTRAP_SEED)
        mcnemar_p_value = _mcnemar(evaluation, correct, other_correct) if name == "accuracy" else None
        interval, p_value = intervals.bootstrap_difference(*pair), intervals.paired_bootstrap_test(*pair)
        differences.append(Difference(name, result.score, other_result.score, interval, p_value, mcnemar_p_value))
    return Comparison(differences, **_count_outcomes(correct, other_correct))


def _count_outcomes(correct: CorrectMask, other_correct: CorrectMask) -> dict[str, Any]:
    """The fields of Comparison that count examples by which of the two models is correct."""
    if correct is None or other_correct is None:
        return {}
    won, lost = correct & ~other_correct, other_correct & ~correct
    masks = {
        "both_correct": correct & other_correct,
        "only_this_correct": won,
        "only_other_correct": lost,
        "neither_correct": ~correct & ~other_correct,
    }
    indices = {"lost": tuple(np.flatnonzero(lost).tolist()), "won": tuple(np.flatnonzero(won).tolist())}
    return {name: int(mask.sum()) for name, mask in masks.items()} | indices


def _mcnemar(evaluation: Evaluation, correct: CorrectMask, other_correct: CorrectMask) -> float | None:
    """Only where accuracy is over examples; the tokens of a sentence are not independent."""
    if correct is None or other_correct is None or evaluation.task.head_type == "token":
        return None
    return intervals.mcnemar(correct, other_correct, np.ones(len(correct), bool))


def _check_comparable(evaluation: Evaluation, other: Evaluation) -> None:
    kinds = [side.task.__struct_config__.tag for side in (evaluation, other)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"against: the other model has task={kinds[1]}, this one task={kinds[0]}; compare models of the same task"
        )
    task, other_task = evaluation.task, other.task
    if task.head_type == "text" and _format_labels(task) != _format_labels(other_task):
        raise UserError(f"against: the other model has the labels {_format_labels(other_task)}, this one has "
                        f"{_format_labels(task)}; compare models with the same labels")  # fmt: skip
    if len(evaluation.examples) != len(other.examples):
        raise UserError(
            f"against: the other model was evaluated on {len(other.examples):,} examples, "
            f"this one on {len(evaluation.examples):,}"
        )


def _format_labels(task: Task) -> str:
    return ", ".join(sorted(task.labels)) + (" (multi-label)" if task.loss == "binary_cross_entropy" else "")
