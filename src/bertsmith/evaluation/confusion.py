"""Precision, recall and F1 of each label, the confusion matrix, and the majority baseline."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..metrics.scores import confusion_matrix
from ..tasks.scorers.conlleval import MatchCounts
from .evaluate import Evaluation

MAX_LABELS = 20  # labels shown in a confusion matrix: those with most errors
MIN_EXAMPLES = 10  # with fewer, equal predictions may be right
MAX_CONSTANT_SPREAD = 0.02  # of the range of the gold values: numbers that differ by less are one


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
    counts = evaluation.task.label_counts(evaluation.predictions, evaluation.examples)
    return [LabelCounts(name, count) for name, count in sorted(counts.items(), key=lambda pair: -pair[1].num_gold)]


def compute_confusion(evaluation: Evaluation) -> ConfusionMatrix | None:
    """Confusion matrix of text labels or of token tags; None for multi-label and other tasks."""
    pairs = evaluation.task.label_pairs(evaluation.predictions, evaluation.examples)
    return None if pairs is None else ConfusionMatrix(pairs[2], confusion_matrix(*pairs).tolist())


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
    """(most frequent gold label, accuracy of always predicting it); None without one label per text."""
    pairs = evaluation.task.label_pairs(evaluation.predictions, evaluation.examples)
    if pairs is None or evaluation.task.head_type == "token":
        return None
    label, count = Counter(pairs[1]).most_common(1)[0]
    return label, count / len(pairs[1])


def describe_constant_predictions(evaluation: Evaluation) -> str | None:
    """A phrase about predictions that are the same for all examples while the gold answers differ; else None."""
    count = len(evaluation.examples)
    if count < MIN_EXAMPLES:
        return None
    if pairs := evaluation.task.label_pairs(evaluation.predictions, evaluation.examples):
        predicted, gold, _ = pairs
        if len(set(predicted)) > 1 or len(set(gold)) < 2:
            return None
        baseline = compute_majority_baseline(evaluation)
        is_majority = baseline is not None and baseline[0] == predicted[0]
        note = f", as the majority baseline does (accuracy {baseline[1]:.3f})" if baseline and is_majority else ""
        return f"the prediction is {predicted[0]!r} for each of {count:,} dev examples{note}"
    result = evaluation.metrics.get(evaluation.task.primary_metric)
    if result is None:
        return None
    predictions, references = result.predictions.astype(float), result.references.astype(float)
    spread = float(np.ptp(references, axis=0).max())
    if predictions.shape != references.shape or not spread or np.ptp(predictions, axis=0).max() > MAX_CONSTANT_SPREAD * spread:
        return None
    return f"the prediction is the same for each of {count:,} dev examples"
