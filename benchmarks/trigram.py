"""Trigram language model with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999): the baseline of NNLM."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.store import Corpus

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def read_tokens(folder: Path) -> Ints:
    """All documents of a corpus as `objective=clm` reads them: [CLS] [CLS] tokens [SEP] each."""
    corpus = Corpus.open(folder)
    tokenizer = corpus.tokenizer
    offsets = corpus.document_token_offsets
    chunks = [np.array([tokenizer.cls_token_id] * 2)]
    for index, (start, end) in enumerate(pairwise(offsets), 1):
        separator = (
            [tokenizer.sep_token_id, tokenizer.cls_token_id, tokenizer.cls_token_id]
            if index < len(offsets) - 1
            else [tokenizer.sep_token_id]
        )
        chunks += [corpus.tokens[start:end], np.array(separator)]
    return np.concatenate(chunks).astype(np.int64)


@dataclass(frozen=True)
class NgramLevel:
    """N-grams of one order: discounted probabilities, and the back-off weight of each context."""

    keys: Ints  # context * vocab_size + word, sorted
    discounted_probs: Floats  # of each key
    contexts: Ints  # sorted
    backoff_weights: Floats  # of each context, for the order below

    @classmethod
    def from_counts(cls, keys: Ints, counts: Ints, vocab_size: int) -> "NgramLevel":
        contexts, context_index = np.unique(keys // vocab_size, return_inverse=True)
        totals = np.bincount(context_index, counts)
        discounts = compute_discounts(counts)[np.minimum(counts, 3)]
        return cls(keys, (counts - discounts) / totals[context_index], contexts, np.bincount(context_index, discounts) / totals)

    def __call__(self, context: Ints, word: Ints, vocab_size: int, lower_order_probs: Floats) -> Floats:
        """Interpolated probability of each word given its context, from the probabilities of the order below."""
        index = np.minimum(np.searchsorted(self.contexts, context), len(self.contexts) - 1)
        backoff = np.where(
            self.contexts[index] == context, self.backoff_weights[index], 1.0
        )  # an unseen context backs off entirely
        key = context * vocab_size + word
        index = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(self.keys[index] == key, self.discounted_probs[index], 0.0) + backoff * lower_order_probs


def compute_discounts(counts: Ints) -> Floats:
    """Discounts D1, D2, D3+ (at index 1 to 3), estimated from the numbers of n-grams seen one to four times."""
    counts_of_counts = np.bincount(np.minimum(counts, 5), minlength=6)[:5].astype(float)
    if not counts_of_counts[1:].all():
        return np.array([0, 0.5, 0.75, 0.75])  # too little text for an estimate
    ratio = counts_of_counts[1] / (counts_of_counts[1] + 2 * counts_of_counts[2])
    return np.array([0, *(n - (n + 1) * ratio * counts_of_counts[n + 1] / counts_of_counts[n] for n in (1, 2, 3))])


class KneserNeyTrigram:
    """Trained on documents of the form [CLS] [CLS] tokens [SEP]; [UNK] is an ordinary word."""

    def __init__(self, tokens: Ints, vocab_size: int, start_id: int) -> None:
        self.vocab_size, self.start_id = vocab_size, start_id
        trigrams, counts = np.unique(self._trigram_keys(tokens), return_counts=True)
        bigrams, bigram_counts = np.unique(
            trigrams % vocab_size**2, return_counts=True
        )  # continuation counts: distinct words before each bigram
        unigrams, unigram_counts = np.unique(bigrams % vocab_size, return_counts=True)
        self.levels = [
            NgramLevel.from_counts(keys, n, vocab_size)
            for keys, n in ((unigrams, unigram_counts), (bigrams, bigram_counts), (trigrams, counts))
        ]

    def probabilities(self, first: Ints, second: Ints, word: Ints) -> Floats:
        probs = np.full(len(word), 1 / self.vocab_size)
        for level, context in zip(self.levels, (np.zeros_like(word), second, first * self.vocab_size + second), strict=True):
            probs = level(context, word, self.vocab_size, probs)
        return probs

    def perplexity(self, tokens: Ints) -> float:
        keys = self._trigram_keys(tokens)
        first, second, word = keys // self.vocab_size**2, keys // self.vocab_size % self.vocab_size, keys % self.vocab_size
        return float(np.exp(-np.log(self.probabilities(first, second, word)).mean()))

    def _trigram_keys(self, tokens: Ints) -> Ints:
        """Keys of all trigrams whose last word is not a start symbol."""
        keys = (tokens[:-2] * self.vocab_size + tokens[1:-1]) * self.vocab_size + tokens[2:]
        return keys[tokens[2:] != self.start_id]
