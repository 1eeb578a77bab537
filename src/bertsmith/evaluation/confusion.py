"""Which labels are found and which are taken for which: precision, recall and F1 of each, and the confusion table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..metrics.scores import confusion_matrix
from ..tasks import TextClassification, TokenClassification
from ..tasks.scorers.conlleval import MatchCounts, are_span_tags, count_matches
from .evaluate import Evaluation

MAX_LABELS = 20  # labels in a confusion table: those in most mistakes


@dataclass(frozen=True)
class LabelCounts:
    """One label: how often it is true, how often it was answered, and how often both."""

    label: str
    counts: MatchCounts


@dataclass(frozen=True)
class ConfusionMatrix:
    """True labels in rows, answers in columns; `left_out` labels are in no mistake that is told here."""

    labels: list[str]
    table: list[list[int]]
    left_out: int = 0

    def most_confused(self, limit: int = 5) -> list[tuple[str, str, int]]:
        """(true, answered, times) off the diagonal, most frequent first."""
        pairs = [(t, a, self.table[i][j]) for i, t in enumerate(self.labels) for j, a in enumerate(self.labels) if i != j]
        return sorted((pair for pair in pairs if pair[2]), key=lambda pair: -pair[2])[:limit]


def compute_label_counts(evaluation: Evaluation) -> list[LabelCounts]:
    """A row for each label (for tags that mark spans: for each type of entity), most frequent first."""
    task = evaluation.task
    if isinstance(task, TextClassification) and task.many:
        given, true = task.label_matrices(evaluation.predictions, evaluation.examples)
        table = zip((given & true).sum(0), given.sum(0), true.sum(0), strict=True)
        return _sort_by_frequency({label: MatchCounts(*map(int, row)) for label, row in zip(task.labels, table, strict=True)})
    if isinstance(task, TextClassification):
        return _sort_by_frequency(
            _counts_from_matrix(task.confusion_matrix(evaluation.predictions, evaluation.examples), task.labels)
        )
    if not isinstance(task, TokenClassification):
        return []
    said, gold = _tag_sequences(evaluation)
    if not are_span_tags(sorted({*chain.from_iterable(gold), *task.labels})):
        whole = compute_confusion(evaluation)
        return _sort_by_frequency(_counts_from_matrix(np.array(whole.table), whole.labels)) if whole else []
    return _sort_by_frequency({name: counts for name, counts in count_matches(said, gold).items() if name})


def compute_confusion(evaluation: Evaluation) -> ConfusionMatrix | None:
    """What is taken for what: labels of texts, or tags of tokens; None where there is nothing of the kind."""
    task = evaluation.task
    if isinstance(task, TextClassification) and not task.many:
        return ConfusionMatrix(list(task.labels), task.confusion_matrix(evaluation.predictions, evaluation.examples).tolist())
    if isinstance(task, TokenClassification):
        said, gold = (list(chain.from_iterable(side)) for side in _tag_sequences(evaluation))
        labels = sorted({*said, *gold})
        return ConfusionMatrix(labels, confusion_matrix(said, gold, labels).tolist())
    return None


def truncate_confusion(matrix: ConfusionMatrix, max_labels: int = MAX_LABELS) -> ConfusionMatrix:
    """The rows and columns with most mistakes, where there are more labels than a page holds."""
    if len(matrix.labels) <= max_labels:
        return matrix
    table = np.array(matrix.table)
    wrong = table.sum(0) + table.sum(1) - 2 * np.diagonal(table)
    kept = np.sort(np.argsort(-wrong, kind="stable")[:max_labels])
    return ConfusionMatrix(
        [matrix.labels[i] for i in kept], table[np.ix_(kept, kept)].tolist(), len(matrix.labels) - max_labels
    )


def compute_majority_baseline(evaluation: Evaluation) -> tuple[str, float] | None:
    """The most frequent label, and how often always answering it is right: what any model must beat."""
    if not isinstance(evaluation.task, TextClassification) or evaluation.task.many:
        return None
    label, count = Counter(one.label for one in evaluation.examples).most_common(1)[0]
    return label, count / len(evaluation.examples)


def _tag_sequences(evaluation: Evaluation) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    return [one.tags for one in evaluation.predictions], [one.tags for one in evaluation.examples]


def _counts_from_matrix(matrix: NDArray[np.int64], labels: Sequence[str]) -> dict[str, MatchCounts]:
    sides = zip(np.diagonal(matrix), matrix.sum(0), matrix.sum(1), strict=True)
    return {label: MatchCounts(*map(int, row)) for label, row in zip(labels, sides, strict=True)}


def _sort_by_frequency(counts_by_label: dict[str, MatchCounts]) -> list[LabelCounts]:
    return [LabelCounts(name, counts) for name, counts in sorted(counts_by_label.items(), key=lambda pair: -pair[1].there)]
