"""SQuAD v1.1 and v2.0 scorer: exact match and token F1 of normalized answers (Rajpurkar et al. 2016, 2018)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lowercase, without ASCII punctuation and articles, words separated by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction equals any reference after normalization."""
    return max((float(normalize_answer(prediction) == normalize_answer(answer)) for answer in references), default=0.0)


def f1(prediction: str, references: Sequence[str]) -> float:
    """Maximum token F1 over references; 0 if either text is empty after normalization (v1.1)."""
    return max(
        (_token_f1(normalize_answer(prediction).split(), normalize_answer(answer).split()) for answer in references),
        default=0.0,
    )


def nonempty_references(references: Sequence[str]) -> list[str]:
    """References as v2.0 compares them: those not empty after normalization, or [""] (no answer)."""
    return [answer for answer in references if normalize_answer(answer)] or [""]


def exact_match_v2(prediction: str, references: Sequence[str]) -> float:
    """Exact match of v2.0: the empty prediction is correct for a question without an answer."""
    return exact_match(prediction, nonempty_references(references))


def f1_v2(prediction: str, references: Sequence[str]) -> float:
    """F1 of v2.0: as v1.1, but 1 if prediction and reference are both empty."""
    return (
        exact_match(prediction, [""])
        if nonempty_references(references) == [""]
        else f1(prediction, nonempty_references(references))
    )


def best_threshold(
    scores: Sequence[float],
    no_answer_scores: Sequence[float],
    has_answer: Sequence[bool],
    predictions: Sequence[str],
    default_threshold: float = 0.0,
) -> tuple[float, float]:
    """Best mean score over all no-answer thresholds, and that threshold: above it the prediction is no answer.

    `scores` are the scores of the predicted texts, `no_answer_scores` the null score of each question; `default_threshold` is
    returned if never answering is best. As in the v2.0 script, questions with equal null scores are added one by one.
    """
    order = np.argsort(np.asarray(no_answer_scores, float), kind="stable")
    gains = np.where(has_answer, scores, [-1.0 if text else 0.0 for text in predictions])[order]
    num_no_answer = sum(not answerable for answerable in has_answer)
    totals = num_no_answer + np.cumsum(gains)
    if not len(totals) or totals.max() <= num_no_answer:
        return num_no_answer / max(len(totals), 1), default_threshold
    best = int(totals.argmax())
    return float(totals[best]) / len(totals), float(no_answer_scores[order[best]])


def _token_f1(prediction: list[str], reference: list[str]) -> float:
    num_common = sum((Counter(prediction) & Counter(reference)).values())
    if not num_common:
        return 0.0
    precision, recall = num_common / len(prediction), num_common / len(reference)
    return 2 * precision * recall / (precision + recall)
