"""Wrong predictions as reports show them: gold answer, prediction, loss, and the texts with highlighted spans."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_TEXT_CHARS = 600  # characters of a text that are shown
PASSAGE_CONTEXT_CHARS = 160  # characters of a passage on each side of an answer


@dataclass(frozen=True)
class TextSpan:
    """A span of a text; `mark` is gold, predicted, both, what is wrong with an entity, or empty for plain text."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction: its location in the data, the gold answer, the prediction, and the texts.

    Mistakes are sorted by `loss`: NLL in nats for labels and options, absolute error for numbers, rank difference for
    similarity, number of wrong spans for tags, (1 - F1) * confidence for answers, 1 - ROUGE-L for generated texts.
    """

    kind: str
    location: str
    gold: str
    prediction: str
    confidence: float | None
    loss: float
    texts: list[list[TextSpan]]


def nll(probability: float) -> float:
    """Negative log-likelihood in nats; finite for 0."""
    return float(-np.log(max(probability, 1e-12)))


def rank_errors(predicted_ranks: NDArray[np.float64], gold_ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Differences of ranks, in [0, 1], for values on different scales."""
    return np.abs(predicted_ranks - gold_ranks) / max(len(predicted_ranks) - 1, 1)


def text_spans(texts: Sequence[str]) -> list[list[TextSpan]]:
    """The texts of an example, without highlights."""
    return [[TextSpan(truncate_text(text))] for text in texts]


def truncate_text(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]} … ({len(text):,} characters)"


def highlight_passage(passage: str, gold: tuple[int, int] | None, predicted: tuple[int, int] | None) -> list[TextSpan]:
    """The passage around the gold and the predicted answer, characters [start, end); overlapping answers are marked as one."""
    marks = [(*gold, "gold")] if gold else []
    if predicted:
        marks.append((*predicted, "predicted"))
    marks.sort()
    if len(marks) == 2 and marks[0][1] > marks[1][0]:
        marks = [(marks[0][0], max(marks[0][1], marks[1][1]), "both")]
    if not marks:
        return [TextSpan(truncate_text(passage))]
    spans, at = [], max(0, marks[0][0] - PASSAGE_CONTEXT_CHARS)
    spans += [TextSpan("… ")] if at else []
    for start, end, mark in marks:
        gap = passage[at:start]
        if len(gap) > 2 * PASSAGE_CONTEXT_CHARS:
            gap = f"{gap[:PASSAGE_CONTEXT_CHARS]} … {gap[-PASSAGE_CONTEXT_CHARS:]}"
        spans += [TextSpan(gap), TextSpan(passage[start:end], mark)]
        at = end
    rest = passage[at:]
    return [*spans, TextSpan(rest if len(rest) <= PASSAGE_CONTEXT_CHARS else f"{rest[:PASSAGE_CONTEXT_CHARS]} …")]
