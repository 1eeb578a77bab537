"""ROUGE (Lin 2004): the words, pairs of words and longest common subsequence that two texts share, as F1."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

# Runs of letters and digits; of writing without spaces each character by itself.
_ALONE = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_WORDS = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")


def rouge(said: str, true: str) -> tuple[float, float, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L, without stemming: of English the numbers of the package rouge-score."""
    left, right = words(said), words(true)
    one, two = (_shared(Counter(a), Counter(b)) for a, b in ((left, right), (list(pairwise(left)), list(pairwise(right)))))
    return one, two, _f1(common(left, right), len(left), len(right))


def words(text: str) -> list[str]:
    return _WORDS.findall(text.lower())


def common(left: Sequence[str], right: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(right) + 1)
    for word in left:
        before = row
        row = [0]
        for column, other in enumerate(right):
            row.append(before[column] + 1 if word == other else max(row[-1], before[column + 1]))
    return row[-1]


def _shared(left: Counter, right: Counter) -> float:
    return _f1((left & right).total(), left.total(), right.total())


def _f1(both: int, left: int, right: int) -> float:
    return 2 * both / (left + right) if both else 0.0
