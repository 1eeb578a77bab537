"""BLEU (Papineni et al. 2002) and chrF (Popovic 2015) with the tokenization and smoothing of sacreBLEU (Post 2018).

Both are ratios of counts that add up over examples: `bleu_counts` gives those of each example, `bleu_from_counts` the score of
any subset or resample of them.
"""

import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]

MAX_ORDER = 4  # of the n-grams of BLEU
CHRF_ORDER, CHRF_BETA = 6, 2

# mteval-v13a: symbols stand alone, full stops and commas unless between digits, hyphens after digits.
_SYMBOLS = r"[{-~\[-` -&(-+:-@/]"
_ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
_MTEVAL_RULES = [
    (re.compile(f"({_SYMBOLS})"), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]
# The characters that sacreBLEU's tokenizer zh sets apart. U+2001 to U+2A6D and U+2F81 to U+2FA1 are in its table because it
# writes the planes beyond U+FFFF with four digits; rarer ideographs are therefore not.
_CHINESE = re.compile(
    "([\u2001-\u2a6d\u2600-\u27bf\u2e80-\u2fdf\u2ff0-\u303f\u3100-\u312f\u31a0-\u31bf\u31c0-\u31ef\u3200-\u4db5\u4e00-\u9fbb"
    "\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9\ufe10-\ufe1f\ufe30-\ufe4f\uff00-\uffef])"
)


def tokenize(text: str, tokenizer: BleuTokenizer = "13a") -> list[str]:
    """The words that BLEU compares.

    13a: mteval's tokenization of European languages; intl: Unicode punctuation and symbols; zh: 13a with each Chinese
    character a word; char: characters; none: split at white space.
    """
    return _TOKENIZERS[tokenizer](text.rstrip()).split()


def bleu_counts(predictions: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer = "13a") -> NDArray[np.int64]:
    """(n, 10): matching n-grams (1 to 4), total n-grams (1 to 4), and the lengths of prediction and reference in words."""
    rows = [
        _count_matches(tokenize(predicted, tokenizer), tokenize(gold, tokenizer))
        for predicted, gold in zip(predictions, references, strict=True)
    ]
    return np.array(rows, np.int64).reshape(-1, 2 * MAX_ORDER + 2)


def bleu_from_counts(predictions: ArrayLike, references: ArrayLike) -> NDArray[np.float64]:
    """Corpus BLEU, 0 to 1, from the `bleu_counts` of each example: (..., n, 10) -> (...).

    BP * exp(mean of log p_n), BP = exp(min(0, 1 - reference length / length)). Where an order has no match, p_n is
    1 / (2^k * total) for the k-th such order (exponential smoothing); without any match, or without 4-grams, BLEU is 0.
    """
    sums = np.asarray(predictions, np.int64).sum(-2)
    values = [_bleu(row[:MAX_ORDER], row[MAX_ORDER:-2], row[-2], row[-1]) for row in sums.reshape(-1, 10).tolist()]
    return np.array(values, np.float64).reshape(sums.shape[:-1])


def chrf(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Corpus chrF, 0 to 1: F2 of the mean precision and recall of character n-grams up to 6, without white space."""
    if not len(references):
        return math.nan
    pairs = zip(predictions, references, strict=True)
    counts = sum(_chrf_counts("".join(predicted.split()), "".join(gold.split())) for predicted, gold in pairs)
    matches, predicted_total, gold_total = np.asarray(counts, np.float64)
    if not (occurs := (predicted_total > 0) & (gold_total > 0)).any():
        return 0.0
    precision = (matches[occurs] / predicted_total[occurs]).mean()
    recall = (matches[occurs] / gold_total[occurs]).mean()
    return float((1 + CHRF_BETA**2) * precision * recall / (CHRF_BETA**2 * precision + recall)) if precision + recall else 0.0


def _count_matches(predicted: list[str], gold: list[str]) -> list[int]:
    matches, totals = [], []
    for order in range(1, MAX_ORDER + 1):
        ngrams = _count_ngrams(predicted, order)
        matches.append((ngrams & _count_ngrams(gold, order)).total())
        totals.append(ngrams.total())
    return [*matches, *totals, len(predicted), len(gold)]


def _count_ngrams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(order)), strict=False))


def _bleu(matches: list[int], totals: list[int], length: int, reference_length: int) -> float:
    if not any(matches) or not all(totals):
        return 0.0
    precisions, smoothing = [], 1.0
    for match, total in zip(matches, totals, strict=True):
        smoothing = smoothing if match else 2 * smoothing
        precisions.append(match / total if match else 1 / (smoothing * total))
    return math.exp(min(0.0, 1 - reference_length / length) + sum(map(math.log, precisions)) / MAX_ORDER)


def _chrf_counts(predicted: str, gold: str) -> NDArray[np.int64]:
    """(3, 6): matching, predicted and gold n-grams of each order; predicted ones count only where there are gold ones."""
    counts = []
    for order in range(1, CHRF_ORDER + 1):
        ngrams, gold_ngrams = _count_ngrams(predicted, order), _count_ngrams(gold, order)
        counts.append(((ngrams & gold_ngrams).total(), ngrams.total() if gold_ngrams else 0, gold_ngrams.total()))
    return np.array(counts, np.int64).T


def _tokenize_13a(text: str) -> str:
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    return _apply_mteval_rules(f" {text} ")


def _apply_mteval_rules(text: str) -> str:
    for pattern, replacement in _MTEVAL_RULES:
        text = pattern.sub(replacement, text)
    return text


def _tokenize_zh(text: str) -> str:
    return _apply_mteval_rules(_CHINESE.sub(r" \1 ", text.strip()))


def _tokenize_intl(text: str) -> str:
    for pattern, replacement in _international_rules():
        text = pattern.sub(replacement, text)
    return text


@cache
def _international_rules() -> list[tuple[re.Pattern[str], str]]:
    """Punctuation stands alone unless between numbers, and symbols stand alone (mteval-v14's international tokenization)."""
    punctuation, numbers, symbols = (_category_ranges(category) for category in "PNS")
    return [
        (re.compile(f"([^{numbers}])([{punctuation}])"), r"\1 \2 "),
        (re.compile(f"([{punctuation}])([^{numbers}])"), r" \1 \2"),
        (re.compile(f"([{symbols}])"), r" \1 "),
    ]


def _category_ranges(category: str) -> str:
    """The characters of a Unicode category (P, N, S ...) as ranges of a regular expression."""
    points = [point for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] == category]
    starts = [points[0], *(right for left, right in pairwise(points) if right != left + 1)]
    ends = [*(left for left, right in pairwise(points) if right != left + 1), points[-1]]
    return "".join(f"\\U{start:08x}-\\U{end:08x}" for start, end in zip(starts, ends, strict=True))


_TOKENIZERS: dict[BleuTokenizer, Callable[[str], str]] = {
    "13a": _tokenize_13a,
    "intl": _tokenize_intl,
    "zh": _tokenize_zh,
    "char": " ".join,
    "none": str,
}
