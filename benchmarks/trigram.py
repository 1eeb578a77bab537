"""A trigram model with modified Kneser-Ney smoothing, interpolated (Chen and Goodman 1999): the control of NNLM."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.store import Corpus

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def read_tokens(folder: Path) -> Ints:
    """All documents of a corpus as `objective=causal` reads them, with two [CLS] before each and a [SEP] behind."""
    corpus = Corpus.open(folder)
    special = corpus.tokenizer
    borders = corpus.document_token_offsets
    pieces = [np.array([special.cls_token_id] * 2)]
    for number, (begin, end) in enumerate(pairwise(borders), 1):
        edge = (
            [special.sep_token_id, special.cls_token_id, special.cls_token_id]
            if number < len(borders) - 1
            else [special.sep_token_id]
        )
        pieces += [corpus.tokens[begin:end], np.array(edge)]
    return np.concatenate(pieces).astype(np.int64)


@dataclass(frozen=True)
class NgramLevel:
    """N-grams of one order: numbered contexts and words, what each has after its discount, and what is left to share."""

    keys: Ints  # context * words + word, in order
    discounted_probs: Floats  # of each, discounted
    contexts: Ints  # in order
    backoff_weights: Floats  # of each context, for the order below

    @classmethod
    def from_counts(cls, keys: Ints, counts: Ints, vocab_size: int) -> "NgramLevel":
        contexts, owner = np.unique(keys // vocab_size, return_inverse=True)
        totals = np.bincount(owner, counts)
        off = compute_discounts(counts)[np.minimum(counts, 3)]
        return cls(keys, (counts - off) / totals[owner], contexts, np.bincount(owner, off) / totals)

    def __call__(self, context: Ints, word: Ints, vocab_size: int, lower_order_probs: Floats) -> Floats:
        """The probability of each word behind its context, given what the order below says."""
        at = np.minimum(np.searchsorted(self.contexts, context), len(self.contexts) - 1)
        left = np.where(self.contexts[at] == context, self.backoff_weights[at], 1.0)  # a context never seen says nothing
        key = context * vocab_size + word
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(self.keys[at] == key, self.discounted_probs[at], 0.0) + left * lower_order_probs


def compute_discounts(counts: Ints) -> Floats:
    """What is taken from counts of 1, 2 and more: by how many n-grams are seen once to four times."""
    seen = np.bincount(np.minimum(counts, 5), minlength=6)[:5].astype(float)
    if not seen[1:].all():
        return np.array([0, 0.5, 0.75, 0.75])  # too little text to tell
    ratio = seen[1] / (seen[1] + 2 * seen[2])
    return np.array([0, *(n - (n + 1) * ratio * seen[n + 1] / seen[n] for n in (1, 2, 3))])


class KneserNeyTrigram:
    """Learnt from a stream of texts, [CLS] [CLS] words [SEP] each; [UNK] is a word like any other."""

    def __init__(self, tokens: Ints, vocab_size: int, start_id: int) -> None:
        self.vocab_size, self.start_id = vocab_size, start_id
        three, counts = np.unique(self._trigram_keys(tokens), return_counts=True)
        two, before = np.unique(three % vocab_size**2, return_counts=True)  # how many words each pair has stood behind
        one, firsts = np.unique(two % vocab_size, return_counts=True)
        self.levels = [
            NgramLevel.from_counts(keys, n, vocab_size) for keys, n in ((one, firsts), (two, before), (three, counts))
        ]

    def probabilities(self, first: Ints, second: Ints, word: Ints) -> Floats:
        found = np.full(len(word), 1 / self.vocab_size)
        for level, context in zip(self.levels, (np.zeros_like(word), second, first * self.vocab_size + second), strict=True):
            found = level(context, word, self.vocab_size, found)
        return found

    def perplexity(self, tokens: Ints) -> float:
        keys = self._trigram_keys(tokens)
        first, second, word = keys // self.vocab_size**2, keys // self.vocab_size % self.vocab_size, keys % self.vocab_size
        return float(np.exp(-np.log(self.probabilities(first, second, word)).mean()))

    def _trigram_keys(self, tokens: Ints) -> Ints:
        """Each word that is no start symbol, behind the two before it."""
        keys = (tokens[:-2] * self.vocab_size + tokens[1:-1]) * self.vocab_size + tokens[2:]
        return keys[tokens[2:] != self.start_id]
