"""Precision, recall and F1 of each label, the confusion matrix, and the majority baseline."""

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

MAX_LABELS = 20  # labels shown in a confusion matrix: those with most errors


@dataclass(frozen=True)
class LabelCounts:
    """One label with its counts of gold, predicted and correct occurrences."""

    label: str
    counts: MatchCounts


@dataclass(frozen=True)
class ConfusionMatrix:
    """Rows are gold labels, columns predicted labels; `num_omitted` counts the labels that are not in the table."""

    labels: list[str]
    table: list[list[int]]
    num_omitted: int = 0

    def most_confused(self, limit: int = 5) -> list[tuple[str, str, int]]:
        """(gold, predicted, count) off the diagonal, most frequent first."""
        labels = list(enumerate(self.labels))
        pairs = [(gold, predicted, self.table[i][j]) for i, gold in labels for j, predicted in labels if i != j]
        return sorted((pair for pair in pairs if pair[2]), key=lambda pair: -pair[2])[:limit]


def compute_label_counts(evaluation: Evaluation) -> list[LabelCounts]:
    """Counts of each label (of each entity type, where tags mark spans), most frequent first."""
    task = evaluation.task
    if isinstance(task, TextClassification) and task.multi_label:
        predicted, gold = task.label_matrices(evaluation.predictions, evaluation.examples)
        table = zip((predicted & gold).sum(0), predicted.sum(0), gold.sum(0), strict=True)
        return _sort_by_frequency({label: MatchCounts(*map(int, row)) for label, row in zip(task.labels, table, strict=True)})
    if isinstance(task, TextClassification):
        return _sort_by_frequency(
            _counts_from_matrix(task.confusion_matrix(evaluation.predictions, evaluation.examples), task.labels)
        )
    if not isinstance(task, TokenClassification):
        return []
    predicted_tags, gold_tags = _tag_sequences(evaluation)
    if not are_span_tags(sorted({*chain.from_iterable(gold_tags), *task.labels})):
        matrix = compute_confusion(evaluation)
        return _sort_by_frequency(_counts_from_matrix(np.array(matrix.table), matrix.labels)) if matrix else []
    return _sort_by_frequency({name: counts for name, counts in count_matches(predicted_tags, gold_tags).items() if name})


def compute_confusion(evaluation: Evaluation) -> ConfusionMatrix | None:
    """Confusion matrix of text labels or of token tags; None for multi-label and other tasks."""
    task = evaluation.task
    if isinstance(task, TextClassification) and not task.multi_label:
        return ConfusionMatrix(list(task.labels), task.confusion_matrix(evaluation.predictions, evaluation.examples).tolist())
    if isinstance(task, TokenClassification):
        predicted_tags, gold_tags = (list(chain.from_iterable(tags)) for tags in _tag_sequences(evaluation))
        labels = sorted({*predicted_tags, *gold_tags})
        return ConfusionMatrix(labels, confusion_matrix(predicted_tags, gold_tags, labels).tolist())
    return None


def truncate_confusion(matrix: ConfusionMatrix, max_labels: int = MAX_LABELS) -> ConfusionMatrix:
    """The matrix restricted to the `max_labels` labels with most errors (row and column sums off the diagonal)."""
    if len(matrix.labels) <= max_labels:
        return matrix
    table = np.array(matrix.table)
    num_errors = table.sum(0) + table.sum(1) - 2 * np.diagonal(table)
    selected = np.sort(np.argsort(-num_errors, kind="stable")[:max_labels])
    return ConfusionMatrix(
        [matrix.labels[i] for i in selected], table[np.ix_(selected, selected)].tolist(), len(matrix.labels) - max_labels
    )


def compute_majority_baseline(evaluation: Evaluation) -> tuple[str, float] | None:
    """(most frequent gold label, accuracy of always predicting it); None for multi-label and other tasks."""
    if not isinstance(evaluation.task, TextClassification) or evaluation.task.multi_label:
        return None
    label, count = Counter(example.label for example in evaluation.examples).most_common(1)[0]
    return label, count / len(evaluation.examples)


def _tag_sequences(evaluation: Evaluation) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """(predicted, gold) tags of every sentence."""
    return [prediction.tags for prediction in evaluation.predictions], [example.tags for example in evaluation.examples]


def _counts_from_matrix(matrix: NDArray[np.int64], labels: Sequence[str]) -> dict[str, MatchCounts]:
    counts = zip(np.diagonal(matrix), matrix.sum(0), matrix.sum(1), strict=True)  # correct, predicted, gold
    return {label: MatchCounts(*map(int, row)) for label, row in zip(labels, counts, strict=True)}


def _sort_by_frequency(counts_by_label: dict[str, MatchCounts]) -> list[LabelCounts]:
    return [LabelCounts(name, counts) for name, counts in sorted(counts_by_label.items(), key=lambda pair: -pair[1].num_gold)]
