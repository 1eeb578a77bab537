"""The best spans of a passage, from scores for where an answer starts and ends in each of its windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Window:
    """A sequence's stretch of the passage: pieces from `first` on, the characters of each, which of them may start one."""

    first: int
    offsets: NDArray[np.int64]  # (pieces, 2), into the whole passage
    own: NDArray[np.bool_]  # (pieces,) no other window sees more around it


@dataclass(frozen=True)
class Span:
    """Characters of the passage; `score` is the logarithm of its probability in its window."""

    score: float
    start: int
    end: int


def best_spans(windows: Sequence[Window], scores: Sequence[NDArray[Any]], longest: int, count: int) -> tuple[list[Span], float]:
    """At most `count` different spans, the best first, and the score of there being none: what the most doubting window says.

    Scores are (length, 2) a window, and become probabilities by a softmax over starts and one over ends, of the
    passage and [CLS], which stands for no answer here. A span starts where its window sees most around it.
    """
    found, nulls = list[Span](), list[float]()
    for window, given in zip(windows, scores, strict=True):
        logs = _log_softmax(np.asarray(given, np.float64)[np.r_[0, window.first : window.first + len(window.offsets)]])
        nulls.append(float(logs[0].sum()))
        found += _spans(window, logs[1:], longest, count)
    best: dict[tuple[int, int], Span] = {}
    for span in sorted(found, key=lambda span: -span.score):
        best.setdefault((span.start, span.end), span)
    return list(best.values())[:count], min(nulls, default=0.0)


def covering(offsets: NDArray[np.int64], start: int, end: int) -> tuple[int, int] | None:
    """The first and the last piece that hold any of these characters; None if none does."""
    places = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(places[0]), int(places[-1])) if len(places) else None


def _spans(window: Window, logs: NDArray[np.float64], longest: int, count: int) -> list[Span]:
    """Every start with every end that is no more than `longest` pieces away: not only the best of each."""
    starts, ends = np.where(window.own, logs[:, 0], -np.inf), np.append(logs[:, 1], np.full(longest - 1, -np.inf))
    if not len(starts):
        return []
    table = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, longest)  # (start, pieces more)
    flat = table.ravel()
    top = np.argpartition(-flat, count - 1)[:count] if len(flat) > count else np.arange(len(flat))
    top = top[np.isfinite(flat[top])]
    return [
        Span(float(flat[at]), int(window.offsets[at // longest, 0]), int(window.offsets[at // longest + at % longest, 1]))
        for at in top[np.argsort(-flat[top], kind="stable")]
    ]


def _log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = scores - scores.max(0)
    return shifted - np.log(np.exp(shifted).sum(0))
