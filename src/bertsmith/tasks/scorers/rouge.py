"""ROUGE (Lin 2004): the words, pairs of words and longest common subsequence that two texts share, as F1."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

# Runs of letters and digits; of writing without spaces each character by itself.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def rouge_scores(prediction: str, reference: str) -> tuple[float, float, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L, without stemming: of English the numbers of the package rouge-score."""
    left, right = tokenize(prediction), tokenize(reference)
    one, two = (_ngram_f1(Counter(a), Counter(b)) for a, b in ((left, right), (list(pairwise(left)), list(pairwise(right)))))
    return one, two, _f1(lcs_length(left, right), len(left), len(right))


def tokenize(text: str) -> list[str]:
    return _TOKEN.findall(text.lower())


def lcs_length(left: Sequence[str], right: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(right) + 1)
    for word in left:
        before = row
        row = [0]
        for column, other in enumerate(right):
            row.append(before[column] + 1 if word == other else max(row[-1], before[column + 1]))
    return row[-1]


def _ngram_f1(prediction: Counter, reference: Counter) -> float:
    return _f1((prediction & reference).total(), prediction.total(), reference.total())


def _f1(num_matches: int, num_predicted: int, num_reference: int) -> float:
    return 2 * num_matches / (num_predicted + num_reference) if num_matches else 0.0
