"""Scores by name, each over one set of answers or over many at once, with what chance could have made of them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError

Array = NDArray[Any]
FloatArray = NDArray[np.float64]
Metric = Callable[[Any, Any], Any]

MAX_INT_LABEL = 256  # labels that are numbers below this count as they are, without a search for those there are


def accuracy(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """The share that is right: (..., n) -> (...)."""
    left, right = _check_shapes(predictions, references)
    return (left == right).mean(-1)


def f1(predictions: ArrayLike, references: ArrayLike, positive: Any = 1) -> FloatArray:
    """Of one label: (..., n) -> (...); 0 where it is neither given nor true. `partial(f1, positive="yes")` is a metric."""
    left, right = _check_shapes(predictions, references)
    if right.dtype.kind in "US" and not isinstance(positive, str):
        raise UserError(f"f1 is of one label, and {positive!r} is no word; take f1_macro, or partial(f1, positive=...)")
    given, true = left == positive, right == positive
    return _f1_score((given & true).sum(-1), given.sum(-1), true.sum(-1))


def f1_macro(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """The mean of the F1 of every label that is given or true: (..., n) -> (...)."""
    table = _confusion_matrices(predictions, references)
    given, true = table.sum(-2), table.sum(-1)
    there = (given + true) > 0
    return _f1_score(np.diagonal(table, 0, -2, -1), given, true).sum(-1) / there.sum(-1)


def f1_micro(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Over all labels together: where each example has one, the same as accuracy."""
    return accuracy(predictions, references)


def matthews(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Correlation of answers and truths, of two labels or more: (..., n) -> (...); 0 where either is constant."""
    table = _confusion_matrices(predictions, references).astype(np.float64)
    given, true, count = table.sum(-2), table.sum(-1), table.sum((-2, -1))
    both = np.trace(table, 0, -2, -1) * count - (given * true).sum(-1)
    apart = (count**2 - (given**2).sum(-1)) * (count**2 - (true**2).sum(-1))
    return np.where(apart > 0, both / np.sqrt(np.where(apart > 0, apart, 1)), 0.0)


def pearson(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Linear correlation: (..., n) -> (...); nan, for there is none, where either is constant."""
    left, right = (np.asarray(x, np.float64) for x in _check_shapes(predictions, references))
    constant = (left == left[..., :1]).all(-1) | (right == right[..., :1]).all(-1)
    found = np.clip((_standardize(left) * _standardize(right)).sum(-1), -1, 1)
    return np.where(constant, np.nan, found)


def spearman(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Correlation of ranks, equal values sharing theirs: (..., n) -> (...)."""
    left, right = _check_shapes(predictions, references)
    return pearson(average_ranks(left), average_ranks(right))


def exact(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """The share of examples with exactly the right labels: bool (..., n, labels) -> (...)."""
    left, right = _check_shapes(predictions, references)
    return (left == right).all(-1).mean(-1)


def f1_macro_many(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """The mean of every label's F1, 0 for one neither given nor true: bool (..., n, labels) -> (...)."""
    left, right = (x.astype(bool) for x in _check_shapes(predictions, references))
    return _f1_score((left & right).sum(-2), left.sum(-2), right.sum(-2)).mean(-1)


def f1_micro_many(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Over all labels together: bool (..., n, labels) -> (...)."""
    left, right = (x.astype(bool) for x in _check_shapes(predictions, references))
    return _f1_score((left & right).sum((-2, -1)), left.sum((-2, -1)), right.sum((-2, -1)))


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        accuracy, f1, f1_macro, f1_micro, matthews, pearson, spearman, exact, f1_macro_many, f1_micro_many,
    )
}  # fmt: skip


def mean_score(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Of what each answer was worth, the truth being counted in already: (..., n) -> (...)."""
    return np.asarray(predictions, np.float64).mean(-1)


def ratio_of_sums(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """Of two counts an example, each summed: (..., n, 2) -> (...); 0 where there is nothing to divide by."""
    part, whole = np.moveaxis(np.asarray(predictions, np.float64).sum(-2), -1, 0)
    return part / np.where(whole > 0, whole, 1)


def f1_from_counts(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """From counts an example, [right, found] against [there, there]: (..., n, 2) -> (...)."""
    left, right = _check_shapes(predictions, references)
    return _f1_score(left[..., 0].sum(-1), left[..., 1].sum(-1), right[..., 0].sum(-1))


def bleu_from_counts(predictions: ArrayLike, references: ArrayLike) -> FloatArray:
    """sacreBLEU of all examples together, from what `bleu_counts` gives for each: (..., n, 10) -> (...), from 0 to 1."""
    sums = np.asarray(predictions, np.int64).sum(-2)
    judge = _import_sacrebleu().BLEU.compute_bleu
    found = [judge(row[:4], row[4:8], row[8], row[9], smooth_method="exp").score for row in sums.reshape(-1, 10).tolist()]
    return np.minimum(np.array(found).reshape(sums.shape[:-1]) / 100, 1.0)  # theirs may be 100.00000000000004


def bleu_counts(predictions: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> NDArray[np.int64]:
    """(n, 10): n-grams that are right and that are there, of one to four words cut as `words` says, and both lengths."""
    judge = _import_sacrebleu().BLEU(tokenize=tokenize, effective_order=True)  # which the counts of a sentence do not depend on
    found = [judge.sentence_score(said, [true]) for said, true in zip(predictions, references, strict=True)]
    return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found], np.int64).reshape(-1, 10)


def chrf(predictions: Sequence[str], references: Sequence[str]) -> float:
    """The F-score of shared runs of one to six characters, of all examples together (Popovic 2015), from 0 to 1."""
    return (
        float(_import_sacrebleu().CHRF().corpus_score(list(predictions), [list(references)]).score) / 100
        if len(references)
        else math.nan
    )


def _import_sacrebleu() -> Any:
    try:
        from sacrebleu import metrics as found
    except ImportError:
        raise UserError("texts that a model wrote are judged by sacreBLEU, which is not installed: pip install bertsmith[eval]; "
                       "without data.dev a model is trained all the same") from None  # fmt: skip
    return found


COUNT_METRICS = (
    mean_score,
    ratio_of_sums,
    f1_from_counts,
    bleu_from_counts,
)  # of what somebody counted in each example: for intervals, not for recipes


def confusion_matrix(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any]) -> NDArray[np.int64]:
    """How often each true label (rows) was answered by each label (columns)."""
    place = {label: number for number, label in enumerate(labels)}
    if strange := {*predictions, *references} - place.keys():
        raise UserError(f"{min(map(str, strange))!r} is not one of the labels: {', '.join(map(str, labels))}")
    table = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(table, ([place[t] for t in references], [place[a] for a in predictions]), 1)
    return table


def average_ranks(values: Array) -> FloatArray:
    """From 1, along the last axis; equal values get the mean of the ranks they take together."""
    order = np.argsort(values, -1, kind="stable")
    ordered = np.take_along_axis(values, order, -1)
    count, places = values.shape[-1], np.arange(values.shape[-1])
    new = np.ones(values.shape, bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    last = np.ones(values.shape, bool)
    last[..., :-1] = new[..., 1:]
    start = np.maximum.accumulate(np.where(new, places, 0), -1)
    end = np.minimum.accumulate(np.where(last, places, count)[..., ::-1], -1)[..., ::-1]
    found = np.empty(values.shape)
    np.put_along_axis(found, order, (start + end) / 2 + 1, -1)
    return found


def _check_shapes(predictions: ArrayLike, references: ArrayLike) -> tuple[Array, Array]:
    left, right = np.asarray(predictions), np.asarray(references)
    axes = min(left.ndim, right.ndim)
    if not axes or left.shape[-axes:] != right.shape[-axes:] or not left.size:
        raise UserError(f"{left.shape} answers cannot be held against {right.shape} truths; there must be one each")
    return left, right


def _confusion_matrices(predictions: ArrayLike, references: ArrayLike) -> NDArray[np.int64]:
    """Confusion tables over the labels there are: (..., n) -> (..., labels, labels), true labels in rows."""
    left, right = np.broadcast_arrays(*_check_shapes(predictions, references))
    codes = np.stack([right, left])
    if codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= MAX_INT_LABEL:
        codes = np.unique(codes, return_inverse=True)[1]
    count, cells = int(codes.max()) + 1, codes.reshape(2, -1, left.shape[-1])
    cell = np.arange(cells.shape[1])[:, None] * count**2 + cells[0] * count + cells[1]
    return np.bincount(cell.ravel(), minlength=cells.shape[1] * count**2).reshape(*left.shape[:-1], count, count)


def _f1_score(true_positives: Array, num_predicted: Array, num_gold: Array) -> FloatArray:
    """F1 from counts; 0 where there is nothing."""
    return 2 * true_positives / np.maximum(num_predicted + num_gold, 1)


def l2_normalize(vectors: Array) -> NDArray[np.float32]:
    """Each of length 1; one of zeros stays: (..., n) -> (..., n)."""
    lengths = np.sqrt(np.einsum("...i,...i->...", vectors, vectors, dtype=np.float64))[..., None]
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _standardize(values: FloatArray) -> FloatArray:
    """Centred and of length 1, whatever the scale; scaled first, so that no square is too small or too large."""
    centred = values - values.mean(-1, keepdims=True)
    largest = np.abs(centred).max(-1, keepdims=True)
    centred = centred / np.where(largest > 0, largest, 1)
    length = np.sqrt((centred**2).sum(-1, keepdims=True))
    return centred / np.where(length > 0, length, 1)


def _metric_by_name(name: str) -> Metric:
    if name not in METRICS:
        raise UserError(f"{name!r} is not a metric; known: {', '.join(METRICS)}")
    return METRICS[name]


def _encode_labels(arrays: list[Array]) -> list[Array]:
    """Labels in words as numbers, in the order of words: a thousand resamples compare them quicker."""
    if arrays[0].dtype.kind not in "US":
        return arrays
    codes = np.unique(np.stack(arrays), return_inverse=True)[1]
    return list(codes.reshape(len(arrays), *arrays[0].shape))
