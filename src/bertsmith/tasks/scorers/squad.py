"""How answers in English are scored: exact match and F1 over words, as SQuAD v1.1 and v2.0 define them."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, without articles, its words parted by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if what was said is any of the answers, but for case, punctuation and articles."""
    return max((float(normalize_answer(prediction) == normalize_answer(answer)) for answer in references), default=0.0)


def f1(prediction: str, references: Sequence[str]) -> float:
    """The best overlap of words with any answer; where no word is left of either, there is none (v1.1)."""
    return max(
        (_token_f1(normalize_answer(prediction).split(), normalize_answer(answer).split()) for answer in references),
        default=0.0,
    )


def nonempty_references(references: Sequence[str]) -> list[str]:
    """What v2.0 compares with: the answers of which something is left, or the empty one, which says there is none."""
    return [answer for answer in references if normalize_answer(answer)] or [""]


def exact_match_v2(prediction: str, references: Sequence[str]) -> float:
    """v2.0: saying nothing is right where there is no answer."""
    return exact_match(prediction, nonempty_references(references))


def f1_v2(prediction: str, references: Sequence[str]) -> float:
    """v2.0: as v1.1, but nothing agrees with nothing."""
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
    """The best mean score that some threshold gives, and that threshold: above it, nothing is answered.

    `scores` are those of answering, `nulls` say how much there seems to be no answer; `never` is the threshold where it is
    best to answer nothing. As in v2.0's script, questions with equal nulls are taken one after another.
    """
    order = np.argsort(np.asarray(no_answer_scores, float), kind="stable")
    gains = np.where(has_answer, scores, [-1.0 if text else 0.0 for text in predictions])[order]
    nothing = sum(not one for one in has_answer)
    reached = nothing + np.cumsum(gains)
    if not len(reached) or reached.max() <= nothing:
        return nothing / max(len(reached), 1), default_threshold
    best = int(reached.argmax())
    return float(reached[best]) / len(reached), float(no_answer_scores[order[best]])


def _token_f1(prediction: list[str], reference: list[str]) -> float:
    same = sum((Counter(prediction) & Counter(reference)).values())
    if not same:
        return 0.0
    precision, recall = same / len(prediction), same / len(reference)
    return 2 * precision * recall / (precision + recall)
