"""Significance tests for two models on the same examples: paired bootstrap of every metric, McNemar's test of accuracy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..metrics import intervals
from ..metrics.intervals import ConfidenceInterval
from ..tasks import MultipleChoice, TextClassification
from .evaluate import Evaluation
from .measures import BOOTSTRAP_SEED, compute_metrics, find_correct

CorrectMask = NDArray[np.bool_] | None  # (examples,); None for regression and similarity


@dataclass(frozen=True)
class Difference:
    """One metric of both models; `p` is the paired bootstrap p-value, `exact_p` that of McNemar's exact test of accuracy."""

    name: str
    score: float
    other: float
    above: ConfidenceInterval  # of score - other
    p: float
    exact_p: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All metrics of two models, and on how many examples both, one or neither of them is correct."""

    differences: list[Difference]
    both: int | None = None  # None for regression and similarity
    only: int | None = None
    only_other: int | None = None
    neither: int | None = None
    lost: tuple[int, ...] = ()  # indices of examples that only the other model predicts correctly
    won: tuple[int, ...] = ()


def compare_evaluations(evaluation: Evaluation, other: Evaluation) -> Comparison:
    """Differences `evaluation` - `other` of all shared metrics; both must be of the same task and examples."""
    _check_comparable(evaluation, other)
    # By this model's task, so that both predictions are encoded in the same order of labels.
    other_metrics = compute_metrics(evaluation.task, other.predictions, evaluation.examples)
    correct = find_correct(evaluation.task, evaluation.predictions, evaluation.examples)
    other_correct = find_correct(evaluation.task, other.predictions, evaluation.examples)
    differences = []
    for name in (name for name in evaluation.metrics if name in other_metrics):
        result, other_result = evaluation.metrics[name], other_metrics[name]
        pair = (result.metric, result.predictions, other_result.predictions, result.references, BOOTSTRAP_SEED)
        exact_p = _mcnemar(evaluation, correct, other_correct) if name == "accuracy" else None
        interval, p = intervals.bootstrap_difference(*pair), intervals.paired_bootstrap_test(*pair)
        differences.append(Difference(name, result.score, other_result.score, interval, p, exact_p))
    return Comparison(differences, **_count_outcomes(correct, other_correct))


def _count_outcomes(correct: CorrectMask, other_correct: CorrectMask) -> dict[str, Any]:
    """The fields of Comparison that count examples by which of the two models is correct."""
    if correct is None or other_correct is None:
        return {}
    won, lost = correct & ~other_correct, other_correct & ~correct
    masks = {"both": correct & other_correct, "only": won, "only_other": lost, "neither": ~correct & ~other_correct}
    indices = {"lost": tuple(np.flatnonzero(lost).tolist()), "won": tuple(np.flatnonzero(won).tolist())}
    return {name: int(mask.sum()) for name, mask in masks.items()} | indices


def _mcnemar(evaluation: Evaluation, correct: CorrectMask, other_correct: CorrectMask) -> float | None:
    """Only where accuracy is over examples; the tokens of a sentence are not independent."""
    if correct is None or other_correct is None or not isinstance(evaluation.task, TextClassification | MultipleChoice):
        return None
    return intervals.mcnemar(correct, other_correct, np.ones(len(correct), bool))


def _check_comparable(evaluation: Evaluation, other: Evaluation) -> None:
    kinds = [side.task.__struct_config__.tag for side in (evaluation, other)]
    if kinds[0] != kinds[1]:
        raise UserError(f"against: the other model does {kinds[1]}, this one {kinds[0]}; compare models of one task")
    task, other_task = evaluation.task, other.task
    if (
        isinstance(task, TextClassification)
        and isinstance(other_task, TextClassification)
        and _format_labels(task) != _format_labels(other_task)
    ):
        raise UserError(f"against: the other model knows the labels {_format_labels(other_task)}, "
                        f"this one {_format_labels(task)}; compare models of one task")  # fmt: skip
    if len(evaluation.examples) != len(other.examples):
        raise UserError(f"against: {len(other.examples):,} examples are judged there, {len(evaluation.examples):,} here")


def _format_labels(task: TextClassification) -> str:
    return ", ".join(sorted(task.labels)) + (" (several at once)" if task.multi_label else "")
