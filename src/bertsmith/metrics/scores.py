"""Metrics by name: accuracy, F1, Matthews and rank correlations, confusion matrix.

Each takes predictions and references with the examples on the last axis (or the axis stated) and broadcasts over leading
axes, so that many bootstrap resamples are scored in one call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError
from .bleu import bleu_from_counts

Array = NDArray[Any]
FloatArray = NDArray[np.float64]
Metric = Callable[[Any, Any], Any]

MAX_INT_LABEL = 256  # integer labels below this are used as indices directly, without np.unique


def accuracy(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Fraction of correct predictions: (..., n) -> (...)."""
    predicted, gold = check_shapes(predictions, references)
    return (predicted == gold).mean(-1)


def f1(predictions: ArrayLike, references: ArrayLike, positive: Any = 1) -> FloatArray:
    """F1 of the label `positive` (`partial(f1, positive="yes")`): (..., n) -> (...); 0 if neither predicted nor gold."""
    predicted_labels, gold_labels = check_shapes(predictions, references)
    if gold_labels.dtype.kind in "US" and not isinstance(positive, str):
        raise UserError(
            f"the labels are strings but positive={positive!r} is not; use f1_macro, or partial(f1, positive=LABEL)"
        )
    predicted, gold = predicted_labels == positive, gold_labels == positive
    return _f1_score((predicted & gold).sum(-1), predicted.sum(-1), gold.sum(-1))


def f1_macro(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Mean F1 over the labels that are predicted or gold: (..., n) -> (...)."""
    confusion = _confusion_matrices(predictions, references)
    num_predicted, num_gold = confusion.sum(-2), confusion.sum(-1)
    occurs = (num_predicted + num_gold) > 0
    return _f1_score(np.diagonal(confusion, 0, -2, -1), num_predicted, num_gold).sum(-1) / occurs.sum(-1)


def f1_micro(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Micro F1; equal to accuracy, since each example has one label."""
    return accuracy(predictions, references)


def matthews(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Matthews correlation coefficient of two or more labels: (..., n) -> (...); 0 where either side is constant."""
    confusion = _confusion_matrices(predictions, references).astype(np.float64)
    num_predicted, num_gold, count = confusion.sum(-2), confusion.sum(-1), confusion.sum((-2, -1))
    covariance = np.trace(confusion, 0, -2, -1) * count - (num_predicted * num_gold).sum(-1)
    variance_product = (count**2 - (num_predicted**2).sum(-1)) * (count**2 - (num_gold**2).sum(-1))
    return np.where(variance_product > 0, covariance / np.sqrt(np.where(variance_product > 0, variance_product, 1)), 0.0)


def pearson(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Pearson correlation: (..., n) -> (...); nan (undefined) where either side is constant."""
    predicted, gold = (np.asarray(x, np.float64) for x in check_shapes(predictions, references))
    constant = (predicted == predicted[..., :1]).all(-1) | (gold == gold[..., :1]).all(-1)
    correlation = np.clip((_standardize(predicted) * _standardize(gold)).sum(-1), -1, 1)
    return np.where(constant, np.nan, correlation)


def spearman(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Spearman rank correlation, with average ranks for ties: (..., n) -> (...)."""
    predicted, gold = check_shapes(predictions, references)
    return pearson(average_ranks(predicted), average_ranks(gold))


def subset_accuracy(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Subset accuracy, the exact match of all labels of an example: bool (..., n, labels) -> (...)."""
    predicted, gold = check_shapes(predictions, references)
    return (predicted == gold).all(-1).mean(-1)


def f1_macro_multi_label(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Multi-label macro F1, 0 for a label neither predicted nor gold: bool (..., n, labels) -> (...)."""
    predicted, gold = (x.astype(bool) for x in check_shapes(predictions, references))
    return _f1_score((predicted & gold).sum(-2), predicted.sum(-2), gold.sum(-2)).mean(-1)


def f1_micro_multi_label(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Multi-label micro F1: bool (..., n, labels) -> (...)."""
    predicted, gold = (x.astype(bool) for x in check_shapes(predictions, references))
    return _f1_score((predicted & gold).sum((-2, -1)), predicted.sum((-2, -1)), gold.sum((-2, -1)))


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        accuracy, f1, f1_macro, f1_micro, matthews, pearson, spearman, subset_accuracy,
        f1_macro_multi_label, f1_micro_multi_label,
    )
}  # fmt: skip


def mean_score(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Mean of per-example scores, which already account for the references: (..., n) -> (...)."""
    return np.asarray(predictions, np.float64).mean(-1)


def ratio_of_sums(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """sum(numerator) / sum(denominator) of per-example counts: (..., n, 2) -> (...); 0 if the denominator is 0."""
    numerator, denominator = np.moveaxis(np.asarray(predictions, np.float64).sum(-2), -1, 0)
    return numerator / np.where(denominator > 0, denominator, 1)


def f1_from_counts(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """F1 from per-example counts, [correct, predicted] and [gold, gold]: (..., n, 2) -> (...)."""
    predicted_counts, gold_counts = check_shapes(predictions, references)
    return _f1_score(predicted_counts[..., 0].sum(-1), predicted_counts[..., 1].sum(-1), gold_counts[..., 0].sum(-1))


COUNT_METRICS = (
    mean_score,
    ratio_of_sums,
    f1_from_counts,
    bleu_from_counts,
)  # of per-example counts or scores, for bootstrap intervals; not available by name


def confusion_matrix(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any]) -> NDArray[np.int64]:
    """(labels, labels) counts: gold labels in rows, predicted labels in columns."""
    label_to_index = {label: index for index, label in enumerate(labels)}
    if unknown := {*predictions, *references} - label_to_index.keys():
        raise UserError(f"{min(map(str, unknown))!r} is not one of the labels: {', '.join(map(str, labels))}")
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(
        counts, ([label_to_index[gold] for gold in references], [label_to_index[predicted] for predicted in predictions]), 1
    )
    return counts


def average_ranks(values: Array) -> FloatArray:
    """Ranks from 1 along the last axis; ties get the mean of their ranks."""
    order = np.argsort(values, -1, kind="stable")
    ordered = np.take_along_axis(values, order, -1)
    count, positions = values.shape[-1], np.arange(values.shape[-1])
    is_first = np.ones(values.shape, bool)
    is_first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    is_last = np.ones(values.shape, bool)
    is_last[..., :-1] = is_first[..., 1:]
    start = np.maximum.accumulate(np.where(is_first, positions, 0), -1)
    end = np.minimum.accumulate(np.where(is_last, positions, count)[..., ::-1], -1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (start + end) / 2 + 1, -1)
    return ranks


def l2_normalize(vectors: Array) -> NDArray[np.float32]:
    """Vectors scaled to L2 norm 1, float32; zero vectors stay zero: (..., n) -> (..., n)."""
    norms = np.sqrt(np.einsum("...i,...i->...", vectors, vectors, dtype=np.float64))[..., None]
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def check_shapes(predictions: ArrayLike, references: ArrayLike) -> tuple[Array, Array]:
    predicted, gold = np.asarray(predictions), np.asarray(references)
    axes = min(predicted.ndim, gold.ndim)
    if not axes or predicted.shape[-axes:] != gold.shape[-axes:] or not predicted.size:
        raise UserError(f"{predicted.shape} predictions do not match {gold.shape} references; there must be one each")
    return predicted, gold


def _confusion_matrices(predictions: ArrayLike, references: ArrayLike) -> NDArray[np.int64]:
    """Confusion matrices over the labels that occur: (..., n) -> (..., labels, labels), gold labels in rows."""
    predicted, gold = np.broadcast_arrays(*check_shapes(predictions, references))
    codes = np.stack([gold, predicted])
    if codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= MAX_INT_LABEL:
        codes = np.unique(codes, return_inverse=True)[1]
    count, cells = int(codes.max()) + 1, codes.reshape(2, -1, predicted.shape[-1])
    cell = np.arange(cells.shape[1])[:, None] * count**2 + cells[0] * count + cells[1]
    return np.bincount(cell.ravel(), minlength=cells.shape[1] * count**2).reshape(*predicted.shape[:-1], count, count)


def _f1_score(true_positives: Array, num_predicted: Array, num_gold: Array) -> FloatArray:
    """F1 from counts; 0 if nothing is predicted or gold."""
    return 2 * true_positives / np.maximum(num_predicted + num_gold, 1)


def _standardize(values: FloatArray) -> FloatArray:
    """Centered and scaled to L2 norm 1; divided by the maximum first, so that no square under- or overflows."""
    centered = values - values.mean(-1, keepdims=True)
    max_abs = np.abs(centered).max(-1, keepdims=True)
    centered = centered / np.where(max_abs > 0, max_abs, 1)
    norm = np.sqrt((centered**2).sum(-1, keepdims=True))
    return centered / np.where(norm > 0, norm, 1)


def metric_by_name(name: str) -> Metric:
    if name not in METRICS:
        raise UserError(f"{name!r} is not a metric; choose one of {', '.join(METRICS)}")
    return METRICS[name]


def encode_labels(arrays: list[Array]) -> list[Array]:
    """Replace string labels by integer ids in sorted order, which are faster to compare in many resamples."""
    if arrays[0].dtype.kind not in "US":
        return arrays
    codes = np.unique(np.stack(arrays), return_inverse=True)[1]
    return list(codes.reshape(len(arrays), *arrays[0].shape))
