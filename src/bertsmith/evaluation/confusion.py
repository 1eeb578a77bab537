"""Which labels are found and which are taken for which: precision, recall and F1 of each, and the confusion table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..metrics.scores import confusion
from ..tasks import Classify, Tag
from ..tasks.scorers.conlleval import Counts, counted, marks_spans
from .evaluate import Judged

MOST = 20  # labels in a confusion table: those in most mistakes


@dataclass(frozen=True)
class Row:
    """One label: how often it is true, how often it was answered, and how often both."""

    label: str
    counts: Counts


@dataclass(frozen=True)
class Confusion:
    """True labels in rows, answers in columns; `left_out` labels are in no mistake that is told here."""

    labels: list[str]
    table: list[list[int]]
    left_out: int = 0

    def worst(self, most: int = 5) -> list[tuple[str, str, int]]:
        """(true, answered, times) off the diagonal, most frequent first."""
        pairs = [(t, a, self.table[i][j]) for i, t in enumerate(self.labels) for j, a in enumerate(self.labels) if i != j]
        return sorted((pair for pair in pairs if pair[2]), key=lambda pair: -pair[2])[:most]


def by_label(judged: Judged) -> list[Row]:
    """A row for each label (for tags that mark spans: for each type of entity), most frequent first."""
    task = judged.task
    if isinstance(task, Classify) and task.many:
        given, true = task.held(judged.answers, judged.examples)
        table = zip((given & true).sum(0), given.sum(0), true.sum(0), strict=True)
        return _ordered({label: Counts(*map(int, row)) for label, row in zip(task.labels, table, strict=True)})
    if isinstance(task, Classify):
        return _ordered(_from(task.confusion(judged.answers, judged.examples), task.labels))
    if not isinstance(task, Tag):
        return []
    said, gold = _tags(judged)
    if not marks_spans(sorted({*chain.from_iterable(gold), *task.labels})):
        whole = tangle(judged)
        return _ordered(_from(np.array(whole.table), whole.labels)) if whole else []
    return _ordered({name: counts for name, counts in counted(said, gold).items() if name})


def tangle(judged: Judged) -> Confusion | None:
    """What is taken for what: labels of texts, or tags of tokens; None where there is nothing of the kind."""
    task = judged.task
    if isinstance(task, Classify) and not task.many:
        return Confusion(list(task.labels), task.confusion(judged.answers, judged.examples).tolist())
    if isinstance(task, Tag):
        said, gold = (list(chain.from_iterable(side)) for side in _tags(judged))
        labels = sorted({*said, *gold})
        return Confusion(labels, confusion(said, gold, labels).tolist())
    return None


def shortened(whole: Confusion, most: int = MOST) -> Confusion:
    """The rows and columns with most mistakes, where there are more labels than a page holds."""
    if len(whole.labels) <= most:
        return whole
    table = np.array(whole.table)
    wrong = table.sum(0) + table.sum(1) - 2 * np.diagonal(table)
    kept = np.sort(np.argsort(-wrong, kind="stable")[:most])
    return Confusion([whole.labels[i] for i in kept], table[np.ix_(kept, kept)].tolist(), len(whole.labels) - most)


def usual(judged: Judged) -> tuple[str, float] | None:
    """The most frequent label, and how often always answering it is right: what any model must beat."""
    if not isinstance(judged.task, Classify) or judged.task.many:
        return None
    label, count = Counter(one.label for one in judged.examples).most_common(1)[0]
    return label, count / len(judged.examples)


def _tags(judged: Judged) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    return [one.tags for one in judged.answers], [one.tags for one in judged.examples]


def _from(table: NDArray[np.int64], labels: Sequence[str]) -> dict[str, Counts]:
    sides = zip(np.diagonal(table), table.sum(0), table.sum(1), strict=True)
    return {label: Counts(*map(int, row)) for label, row in zip(labels, sides, strict=True)}


def _ordered(found: dict[str, Counts]) -> list[Row]:
    return [Row(name, counts) for name, counts in sorted(found.items(), key=lambda pair: -pair[1].there)]
