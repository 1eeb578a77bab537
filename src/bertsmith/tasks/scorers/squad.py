"""How answers in English are scored: exact match and F1 over words, as SQuAD v1.1 and v2.0 define them."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def plain(text: str) -> str:
    """Lower case, without ASCII punctuation, without articles, its words parted by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(said: str, answers: Sequence[str]) -> float:
    """1 if what was said is any of the answers, but for case, punctuation and articles."""
    return max((float(plain(said) == plain(answer)) for answer in answers), default=0.0)


def f1(said: str, answers: Sequence[str]) -> float:
    """The best overlap of words with any answer; where no word is left of either, there is none (v1.1)."""
    return max((_overlap(plain(said).split(), plain(answer).split()) for answer in answers), default=0.0)


def golds(answers: Sequence[str]) -> list[str]:
    """What v2.0 compares with: the answers of which something is left, or the empty one, which says there is none."""
    return [answer for answer in answers if plain(answer)] or [""]


def exact_or_none(said: str, answers: Sequence[str]) -> float:
    """v2.0: saying nothing is right where there is no answer."""
    return exact(said, golds(answers))


def f1_or_none(said: str, answers: Sequence[str]) -> float:
    """v2.0: as v1.1, but nothing agrees with nothing."""
    return exact(said, [""]) if golds(answers) == [""] else f1(said, golds(answers))


def best_threshold(
    scores: Sequence[float], nulls: Sequence[float], answerable: Sequence[bool], said: Sequence[str], never: float = 0.0
) -> tuple[float, float]:
    """The best mean score that some threshold gives, and that threshold: above it, nothing is answered.

    `scores` are those of answering, `nulls` say how much there seems to be no answer; `never` is the threshold where it is
    best to answer nothing. As in v2.0's script, questions with equal nulls are taken one after another.
    """
    order = np.argsort(np.asarray(nulls, float), kind="stable")
    gains = np.where(answerable, scores, [-1.0 if text else 0.0 for text in said])[order]
    nothing = sum(not one for one in answerable)
    reached = nothing + np.cumsum(gains)
    if not len(reached) or reached.max() <= nothing:
        return nothing / max(len(reached), 1), never
    best = int(reached.argmax())
    return float(reached[best]) / len(reached), float(nulls[order[best]])


def _overlap(said: list[str], answer: list[str]) -> float:
    same = sum((Counter(said) & Counter(answer)).values())
    if not same:
        return 0.0
    precision, recall = same / len(said), same / len(answer)
    return 2 * precision * recall / (precision + recall)
