"""The best answer spans of a context, split into windows, from start and end logits (Devlin et al. 2019, section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class QaWindow:
    """Window of the context in one sequence: where it starts, and offsets and max-context flag of its tokens."""

    context_start: int  # position of the first context token in the sequence
    offsets: NDArray[np.int64]  # (tokens, 2) characters of each token in the whole context
    is_max_context: NDArray[np.bool_]  # (tokens,) no other window gives the token more context


@dataclass(frozen=True)
class ScoredSpan:
    """Characters [start, end) of the context; `score` is the log probability of the span in its window."""

    score: float
    start: int
    end: int


def best_spans(
    windows: Sequence[QaWindow], logits: Sequence[NDArray[Any]], max_answer_length: int, n_best_size: int
) -> tuple[list[ScoredSpan], float]:
    """Up to `n_best_size` different spans, best first, and the null score: the lowest log P(no answer) of all windows.

    `logits` are (length, 2) per window. Span score: log softmax of the start logits + log softmax of the end logits, each
    over the context tokens and [CLS], which stands for no answer in this window. Starts are limited to max-context tokens.
    """
    spans, null_scores = list[ScoredSpan](), list[float]()
    for window, window_logits in zip(windows, logits, strict=True):
        log_probs = _log_softmax(
            np.asarray(window_logits, np.float64)[np.r_[0, window.context_start : window.context_start + len(window.offsets)]]
        )
        null_scores.append(float(log_probs[0].sum()))
        spans += _window_spans(window, log_probs[1:], max_answer_length, n_best_size)
    best: dict[tuple[int, int], ScoredSpan] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        best.setdefault((span.start, span.end), span)
    return list(best.values())[:n_best_size], min(null_scores, default=0.0)


def find_token_span(offsets: NDArray[np.int64], start: int, end: int) -> tuple[int, int] | None:
    """First and last token that overlap the characters [start, end); None if no token does."""
    tokens = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def _window_spans(
    window: QaWindow, log_probs: NDArray[np.float64], max_answer_length: int, n_best_size: int
) -> list[ScoredSpan]:
    """The best spans of at most `max_answer_length` tokens, over all pairs of start and end."""
    starts, ends = (
        np.where(window.is_max_context, log_probs[:, 0], -np.inf),
        np.append(log_probs[:, 1], np.full(max_answer_length - 1, -np.inf)),
    )
    if not len(starts):
        return []
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, max_answer_length)  # (start, length - 1)
    flat_scores = scores.ravel()
    top = (
        np.argpartition(-flat_scores, n_best_size - 1)[:n_best_size]
        if len(flat_scores) > n_best_size
        else np.arange(len(flat_scores))
    )
    top = top[np.isfinite(flat_scores[top])]
    return [
        ScoredSpan(
            float(flat_scores[index]),
            int(window.offsets[index // max_answer_length, 0]),
            int(window.offsets[index // max_answer_length + index % max_answer_length, 1]),
        )
        for index in top[np.argsort(-flat_scores[top], kind="stable")]
    ]


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(0)
    return shifted - np.log(np.exp(shifted).sum(0))
