"""Two models on the same examples: how far their scores are apart, and whether chance alone could do that."""

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

CorrectMask = NDArray[np.bool_] | None  # for every example; None where answers are numbers


@dataclass(frozen=True)
class Difference:
    """One score of both; `p` is how likely chance makes as large a difference, `exact_p` McNemar's, of accuracy."""

    name: str
    score: float
    other: float
    above: ConfidenceInterval  # score - other
    p: float
    exact_p: float | None = None


@dataclass(frozen=True)
class Comparison:
    differences: list[Difference]
    both: int | None = None  # examples both answer right; None where answers are numbers
    only: int | None = None
    only_other: int | None = None
    neither: int | None = None
    lost: tuple[int, ...] = ()  # numbers of examples that only the other model answers right
    won: tuple[int, ...] = ()


def compare_evaluations(evaluation: Evaluation, other: Evaluation) -> Comparison:
    """`judged` against the `other`: the same task, the same examples."""
    _check_comparable(evaluation, other)
    theirs = compute_metrics(evaluation.task, other.predictions, evaluation.examples)  # in one order of labels for both
    sides = [
        find_correct(evaluation.task, answers, evaluation.examples) for answers in (evaluation.predictions, other.predictions)
    ]
    found = []
    for name in (name for name in evaluation.metrics if name in theirs):
        mine = evaluation.metrics[name]
        pair = (mine.metric, mine.predictions, theirs[name].predictions, mine.references, BOOTSTRAP_SEED)
        exact = _mcnemar(evaluation, *sides) if name == "accuracy" else None
        found.append(
            Difference(
                name,
                mine.score,
                theirs[name].score,
                intervals.bootstrap_difference(*pair),
                intervals.paired_bootstrap_test(*pair),
                exact,
            )
        )
    return Comparison(found, **_count_outcomes(*sides))


def _count_outcomes(mine: CorrectMask, theirs: CorrectMask) -> dict[str, Any]:
    if mine is None or theirs is None:
        return {}
    won, lost = mine & ~theirs, theirs & ~mine
    counts = {"both": mine & theirs, "only": won, "only_other": lost, "neither": ~mine & ~theirs}
    numbers = {"lost": tuple(np.flatnonzero(lost).tolist()), "won": tuple(np.flatnonzero(won).tolist())}
    return {name: int(chosen.sum()) for name, chosen in counts.items()} | numbers


def _mcnemar(evaluation: Evaluation, mine: CorrectMask, theirs: CorrectMask) -> float | None:
    """Where accuracy is a share of examples; of tokens, which are not drawn one by one, it is not."""
    if mine is None or theirs is None or not isinstance(evaluation.task, TextClassification | MultipleChoice):
        return None
    return intervals.mcnemar(mine, theirs, np.ones(len(mine), bool))


def _check_comparable(evaluation: Evaluation, other: Evaluation) -> None:
    kinds = [one.task.__struct_config__.tag for one in (evaluation, other)]
    if kinds[0] != kinds[1]:
        raise UserError(f"against: the other model does {kinds[1]}, this one {kinds[0]}; compare models of one task")
    mine, theirs = evaluation.task, other.task
    if (
        isinstance(mine, TextClassification)
        and isinstance(theirs, TextClassification)
        and _format_labels(mine) != _format_labels(theirs)
    ):
        raise UserError(f"against: the other model knows the labels {_format_labels(theirs)}, this one {_format_labels(mine)}; "
                       "compare models of one task")  # fmt: skip
    if len(evaluation.examples) != len(other.examples):
        raise UserError(f"against: {len(other.examples):,} examples are judged there, {len(evaluation.examples):,} here")


def _format_labels(task: TextClassification) -> str:
    return ", ".join(sorted(task.labels)) + (" (several at once)" if task.many else "")
