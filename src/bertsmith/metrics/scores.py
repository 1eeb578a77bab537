"""Scores by name, each over one set of answers or over many at once, with what chance could have made of them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BadInput

Array = NDArray[Any]
Floats = NDArray[np.float64]
Metric = Callable[[Any, Any], Any]

FEW = 256  # labels that are numbers below this count as they are, without a search for those there are


def accuracy(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """The share that is right: (..., n) -> (...)."""
    left, right = _aligned(answers, truths)
    return (left == right).mean(-1)


def f1(answers: ArrayLike, truths: ArrayLike, positive: Any = 1) -> Floats:
    """Of one label: (..., n) -> (...); 0 where it is neither given nor true. `partial(f1, positive="yes")` is a metric."""
    left, right = _aligned(answers, truths)
    if right.dtype.kind in "US" and not isinstance(positive, str):
        raise BadInput(f"f1 is of one label, and {positive!r} is no word; take f1_macro, or partial(f1, positive=...)")
    given, true = left == positive, right == positive
    return _harmonic((given & true).sum(-1), given.sum(-1), true.sum(-1))


def f1_macro(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """The mean of the F1 of every label that is given or true: (..., n) -> (...)."""
    table = _tables(answers, truths)
    given, true = table.sum(-2), table.sum(-1)
    there = (given + true) > 0
    return _harmonic(np.diagonal(table, 0, -2, -1), given, true).sum(-1) / there.sum(-1)


def f1_micro(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """Over all labels together: where each example has one, the same as accuracy."""
    return accuracy(answers, truths)


def matthews(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """Correlation of answers and truths, of two labels or more: (..., n) -> (...); 0 where either is constant."""
    table = _tables(answers, truths).astype(np.float64)
    given, true, count = table.sum(-2), table.sum(-1), table.sum((-2, -1))
    both = np.trace(table, 0, -2, -1) * count - (given * true).sum(-1)
    apart = (count**2 - (given**2).sum(-1)) * (count**2 - (true**2).sum(-1))
    return np.where(apart > 0, both / np.sqrt(np.where(apart > 0, apart, 1)), 0.0)


def pearson(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """Linear correlation: (..., n) -> (...); nan, for there is none, where either is constant."""
    left, right = (np.asarray(x, np.float64) for x in _aligned(answers, truths))
    constant = (left == left[..., :1]).all(-1) | (right == right[..., :1]).all(-1)
    found = np.clip((_unit(left) * _unit(right)).sum(-1), -1, 1)
    return np.where(constant, np.nan, found)


def spearman(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """Correlation of ranks, equal values sharing theirs: (..., n) -> (...)."""
    left, right = _aligned(answers, truths)
    return pearson(ranks(left), ranks(right))


def exact(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """The share of examples with exactly the right labels: bool (..., n, labels) -> (...)."""
    left, right = _aligned(answers, truths)
    return (left == right).all(-1).mean(-1)


def f1_macro_many(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """The mean of every label's F1, 0 for one neither given nor true: bool (..., n, labels) -> (...)."""
    left, right = (x.astype(bool) for x in _aligned(answers, truths))
    return _harmonic((left & right).sum(-2), left.sum(-2), right.sum(-2)).mean(-1)


def f1_micro_many(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """Over all labels together: bool (..., n, labels) -> (...)."""
    left, right = (x.astype(bool) for x in _aligned(answers, truths))
    return _harmonic((left & right).sum((-2, -1)), left.sum((-2, -1)), right.sum((-2, -1)))


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        accuracy, f1, f1_macro, f1_micro, matthews, pearson, spearman, exact, f1_macro_many, f1_micro_many,
    )
}  # fmt: skip


def mean(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """Of what each answer was worth, the truth being counted in already: (..., n) -> (...)."""
    return np.asarray(answers, np.float64).mean(-1)


def ratio(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """Of two counts an example, each summed: (..., n, 2) -> (...); 0 where there is nothing to divide by."""
    part, whole = np.moveaxis(np.asarray(answers, np.float64).sum(-2), -1, 0)
    return part / np.where(whole > 0, whole, 1)


def f1_counted(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """From counts an example, [right, found] against [there, there]: (..., n, 2) -> (...)."""
    left, right = _aligned(answers, truths)
    return _harmonic(left[..., 0].sum(-1), left[..., 1].sum(-1), right[..., 0].sum(-1))


def bleu(answers: ArrayLike, truths: ArrayLike) -> Floats:
    """sacreBLEU of all examples together, from what `bleu_counts` gives for each: (..., n, 10) -> (...), from 0 to 1."""
    sums = np.asarray(answers, np.int64).sum(-2)
    judge = _sacrebleu().BLEU.compute_bleu
    found = [judge(row[:4], row[4:8], row[8], row[9], smooth_method="exp").score for row in sums.reshape(-1, 10).tolist()]
    return np.minimum(np.array(found).reshape(sums.shape[:-1]) / 100, 1.0)  # theirs may be 100.00000000000004


def bleu_counts(answers: Sequence[str], truths: Sequence[str], words: str = "13a") -> NDArray[np.int64]:
    """(n, 10): n-grams that are right and that are there, of one to four words cut as `words` says, and both lengths."""
    judge = _sacrebleu().BLEU(tokenize=words, effective_order=True)  # which the counts of a sentence do not depend on
    found = [judge.sentence_score(said, [true]) for said, true in zip(answers, truths, strict=True)]
    return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found], np.int64).reshape(-1, 10)


def chrf(answers: Sequence[str], truths: Sequence[str]) -> float:
    """The F-score of shared runs of one to six characters, of all examples together (Popovic 2015), from 0 to 1."""
    return float(_sacrebleu().CHRF().corpus_score(list(answers), [list(truths)]).score) / 100 if len(truths) else math.nan


def _sacrebleu() -> Any:
    try:
        from sacrebleu import metrics as found
    except ImportError:
        raise BadInput("texts that a model wrote are judged by sacreBLEU, which is not installed: pip install bertsmith[eval]; "
                       "without data.dev a model is trained all the same") from None  # fmt: skip
    return found


COUNTED = (mean, ratio, f1_counted, bleu)  # of what somebody counted in each example: for intervals, not for recipes


def confusion(answers: Sequence[Any], truths: Sequence[Any], labels: Sequence[Any]) -> NDArray[np.int64]:
    """How often each true label (rows) was answered by each label (columns)."""
    place = {label: number for number, label in enumerate(labels)}
    if strange := {*answers, *truths} - place.keys():
        raise BadInput(f"{min(map(str, strange))!r} is not one of the labels: {', '.join(map(str, labels))}")
    table = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(table, ([place[t] for t in truths], [place[a] for a in answers]), 1)
    return table


def ranks(values: Array) -> Floats:
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


def _aligned(answers: ArrayLike, truths: ArrayLike) -> tuple[Array, Array]:
    left, right = np.asarray(answers), np.asarray(truths)
    axes = min(left.ndim, right.ndim)
    if not axes or left.shape[-axes:] != right.shape[-axes:] or not left.size:
        raise BadInput(f"{left.shape} answers cannot be held against {right.shape} truths; there must be one each")
    return left, right


def _tables(answers: ArrayLike, truths: ArrayLike) -> NDArray[np.int64]:
    """Confusion tables over the labels there are: (..., n) -> (..., labels, labels), true labels in rows."""
    left, right = np.broadcast_arrays(*_aligned(answers, truths))
    codes = np.stack([right, left])
    if codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= FEW:
        codes = np.unique(codes, return_inverse=True)[1]
    count, cells = int(codes.max()) + 1, codes.reshape(2, -1, left.shape[-1])
    cell = np.arange(cells.shape[1])[:, None] * count**2 + cells[0] * count + cells[1]
    return np.bincount(cell.ravel(), minlength=cells.shape[1] * count**2).reshape(*left.shape[:-1], count, count)


def _harmonic(both: Array, given: Array, true: Array) -> Floats:
    """F1 from counts; 0 where there is nothing."""
    return 2 * both / np.maximum(given + true, 1)


def unit_rows(rows: Array) -> NDArray[np.float32]:
    """Each of length 1; one of zeros stays: (..., n) -> (..., n)."""
    lengths = np.sqrt(np.einsum("...i,...i->...", rows, rows, dtype=np.float64))[..., None]
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _unit(values: Floats) -> Floats:
    """Centred and of length 1, whatever the scale; scaled first, so that no square is too small or too large."""
    centred = values - values.mean(-1, keepdims=True)
    largest = np.abs(centred).max(-1, keepdims=True)
    centred = centred / np.where(largest > 0, largest, 1)
    length = np.sqrt((centred**2).sum(-1, keepdims=True))
    return centred / np.where(length > 0, length, 1)


def _named(metric: str) -> Metric:
    if metric not in METRICS:
        raise BadInput(f"{metric!r} is not a metric; known: {', '.join(METRICS)}")
    return METRICS[metric]


def _coded(arrays: list[Array]) -> list[Array]:
    """Labels in words as numbers, in the order of words: a thousand resamples compare them quicker."""
    if arrays[0].dtype.kind not in "US":
        return arrays
    codes = np.unique(np.stack(arrays), return_inverse=True)[1]
    return list(codes.reshape(len(arrays), *arrays[0].shape))
