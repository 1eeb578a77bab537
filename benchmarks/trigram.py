"""A trigram model with modified Kneser-Ney smoothing, interpolated (Chen and Goodman 1999): the control of NNLM."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.store import Corpus

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def texts(folder: Path) -> Ints:
    """All documents of a corpus as `objective=causal` reads them, with two [CLS] before each and a [SEP] behind."""
    corpus = Corpus.open(folder)
    special = corpus.tokenizer
    borders = corpus.borders
    pieces = [np.array([special.cls] * 2)]
    for number, (begin, end) in enumerate(pairwise(borders), 1):
        edge = [special.sep, special.cls, special.cls] if number < len(borders) - 1 else [special.sep]
        pieces += [corpus.tokens[begin:end], np.array(edge)]
    return np.concatenate(pieces).astype(np.int64)


@dataclass(frozen=True)
class Level:
    """N-grams of one order: numbered contexts and words, what each has after its discount, and what is left to share."""

    keys: Ints  # context * words + word, in order
    shares: Floats  # of each, discounted
    contexts: Ints  # in order
    left: Floats  # of each context, for the order below

    @classmethod
    def of(cls, keys: Ints, counts: Ints, words: int) -> "Level":
        contexts, owner = np.unique(keys // words, return_inverse=True)
        totals = np.bincount(owner, counts)
        off = discounts(counts)[np.minimum(counts, 3)]
        return cls(keys, (counts - off) / totals[owner], contexts, np.bincount(owner, off) / totals)

    def __call__(self, context: Ints, word: Ints, words: int, below: Floats) -> Floats:
        """The probability of each word behind its context, given what the order below says."""
        at = np.minimum(np.searchsorted(self.contexts, context), len(self.contexts) - 1)
        left = np.where(self.contexts[at] == context, self.left[at], 1.0)  # a context never seen says nothing
        key = context * words + word
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(self.keys[at] == key, self.shares[at], 0.0) + left * below


def discounts(counts: Ints) -> Floats:
    """What is taken from counts of 1, 2 and more: by how many n-grams are seen once to four times."""
    seen = np.bincount(np.minimum(counts, 5), minlength=6)[:5].astype(float)
    if not seen[1:].all():
        return np.array([0, 0.5, 0.75, 0.75])  # too little text to tell
    ratio = seen[1] / (seen[1] + 2 * seen[2])
    return np.array([0, *(n - (n + 1) * ratio * seen[n + 1] / seen[n] for n in (1, 2, 3))])


class Trigram:
    """Learnt from a stream of texts, [CLS] [CLS] words [SEP] each; [UNK] is a word like any other."""

    def __init__(self, stream: Ints, words: int, start: int) -> None:
        self.words, self.start = words, start
        three, counts = np.unique(self._keys(stream), return_counts=True)
        two, before = np.unique(three % words**2, return_counts=True)  # how many words each pair has stood behind
        one, firsts = np.unique(two % words, return_counts=True)
        self.levels = [Level.of(keys, n, words) for keys, n in ((one, firsts), (two, before), (three, counts))]

    def probabilities(self, first: Ints, second: Ints, word: Ints) -> Floats:
        found = np.full(len(word), 1 / self.words)
        for level, context in zip(self.levels, (np.zeros_like(word), second, first * self.words + second), strict=True):
            found = level(context, word, self.words, found)
        return found

    def perplexity(self, stream: Ints) -> float:
        keys = self._keys(stream)
        first, second, word = keys // self.words**2, keys // self.words % self.words, keys % self.words
        return float(np.exp(-np.log(self.probabilities(first, second, word)).mean()))

    def _keys(self, stream: Ints) -> Ints:
        """Each word that is no start symbol, behind the two before it."""
        keys = (stream[:-2] * self.words + stream[1:-1]) * self.words + stream[2:]
        return keys[stream[2:] != self.start]
