"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): F1 of unigrams, bigrams and the longest common subsequence."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

# Runs of letters and digits; in scripts without spaces each character is a token.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def rouge_scores(prediction: str, reference: str) -> tuple[float, float, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L without stemming; for English equal to the package rouge-score."""
    left, right = tokenize(prediction), tokenize(reference)
    rouge1, rouge2 = (
        _ngram_f1(Counter(a), Counter(b)) for a, b in ((left, right), (list(pairwise(left)), list(pairwise(right))))
    )
    return rouge1, rouge2, _f1(lcs_length(left, right), len(left), len(right))


def tokenize(text: str) -> list[str]:
    return _TOKEN.findall(text.lower())


def lcs_length(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(right) + 1)
    for word in left:
        previous = row
        row = [0]
        for column, other_word in enumerate(right):
            row.append(previous[column] + 1 if word == other_word else max(row[-1], previous[column + 1]))
    return row[-1]


def _ngram_f1(prediction: Counter, reference: Counter) -> float:
    return _f1((prediction & reference).total(), prediction.total(), reference.total())


def _f1(num_matches: int, num_predicted: int, num_reference: int) -> float:
    return 2 * num_matches / (num_predicted + num_reference) if num_matches else 0.0
