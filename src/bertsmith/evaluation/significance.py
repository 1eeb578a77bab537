"""Two models on the same examples: how far their scores are apart, and whether chance alone could do that."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..metrics import intervals
from ..metrics.intervals import Interval
from ..tasks import Choose, Classify
from .evaluate import Judged
from .measures import SEED, measures, right

Right = NDArray[np.bool_] | None  # for every example; None where answers are numbers


@dataclass(frozen=True)
class Difference:
    """One score of both; `p` is how likely chance makes as large a difference, `exact_p` McNemar's, of accuracy."""

    name: str
    score: float
    other: float
    above: Interval  # score - other
    p: float
    exact_p: float | None = None


@dataclass(frozen=True)
class Compared:
    differences: list[Difference]
    both: int | None = None  # examples both answer right; None where answers are numbers
    only: int | None = None
    only_other: int | None = None
    neither: int | None = None
    lost: tuple[int, ...] = ()  # numbers of examples that only the other model answers right
    won: tuple[int, ...] = ()


def compared(judged: Judged, other: Judged) -> Compared:
    """`judged` against the `other`: the same task, the same examples."""
    _alike(judged, other)
    theirs = measures(judged.task, other.answers, judged.examples)  # in one order of labels for both
    sides = [right(judged.task, answers, judged.examples) for answers in (judged.answers, other.answers)]
    found = []
    for name in (name for name in judged.measures if name in theirs):
        mine = judged.measures[name]
        pair = (mine.metric, mine.answers, theirs[name].answers, mine.truths, SEED)
        exact = _mcnemar(judged, *sides) if name == "accuracy" else None
        found.append(
            Difference(name, mine.score, theirs[name].score, intervals.difference(*pair), intervals.paired(*pair), exact)
        )
    return Compared(found, **_counts(*sides))


def _counts(mine: Right, theirs: Right) -> dict[str, Any]:
    if mine is None or theirs is None:
        return {}
    won, lost = mine & ~theirs, theirs & ~mine
    counts = {"both": mine & theirs, "only": won, "only_other": lost, "neither": ~mine & ~theirs}
    numbers = {"lost": tuple(np.flatnonzero(lost).tolist()), "won": tuple(np.flatnonzero(won).tolist())}
    return {name: int(chosen.sum()) for name, chosen in counts.items()} | numbers


def _mcnemar(judged: Judged, mine: Right, theirs: Right) -> float | None:
    """Where accuracy is a share of examples; of tokens, which are not drawn one by one, it is not."""
    if mine is None or theirs is None or not isinstance(judged.task, Classify | Choose):
        return None
    return intervals.mcnemar(mine, theirs, np.ones(len(mine), bool))


def _alike(judged: Judged, other: Judged) -> None:
    kinds = [one.task.__struct_config__.tag for one in (judged, other)]
    if kinds[0] != kinds[1]:
        raise BadInput(f"against: the other model does {kinds[1]}, this one {kinds[0]}; compare models of one task")
    mine, theirs = judged.task, other.task
    if isinstance(mine, Classify) and isinstance(theirs, Classify) and _labels(mine) != _labels(theirs):
        raise BadInput(f"against: the other model knows the labels {_labels(theirs)}, this one {_labels(mine)}; "
                       "compare models of one task")  # fmt: skip
    if len(judged.examples) != len(other.examples):
        raise BadInput(f"against: {len(other.examples):,} examples are judged there, {len(judged.examples):,} here")


def _labels(task: Classify) -> str:
    return ", ".join(sorted(task.labels)) + (" (several at once)" if task.many else "")
