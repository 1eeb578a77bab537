"""What it costs to fill a table of words, by formulas: the products of vectors that word2vec and GloVe are made of."""

import numpy as np
from numpy.typing import NDArray

from ..corpus.card import unigrams
from ..corpus.store import Corpus
from ..model.ancestors.huffman import huffman
from ..objectives.glove import Glove
from ..objectives.neighbours import Neighbours, SkipGram
from ..objectives.stretches import kept
from ..objectives.tabled import Tabled
from .flops import LEARNING

Floats = NDArray[np.float64]


def an_epoch(objective: Tabled, corpus: Corpus) -> float:
    """Operations of one pass over the corpus, in expectation; for GloVe, which passes over counts, no more than these."""
    if isinstance(objective, Neighbours):
        return LEARNING * 2 * objective.width * _products(objective, corpus)
    assert isinstance(objective, Glove)
    words = np.diff(corpus.sentences if objective.within == "sentence" else corpus.borders).astype(np.float64)
    return of_pairs(objective, float(sum(2 * np.maximum(words - far, 0).sum() for far in range(1, objective.window + 1))))


def of_pairs(objective: Glove, pairs: float) -> float:
    """Of so many products of two rows, biases counted in."""
    return LEARNING * 2 * (objective.width + 2) * pairs


def neighbours(words: Floats, window: int) -> float:
    """Pairs of a word and a neighbour in sentences of so many words, each window drawn from 1 up to `window`."""
    return float(sum(2 * np.maximum(words - far, 0).sum() * (window - far + 1) / window for far in range(1, window + 1)))


def _products(objective: Neighbours, corpus: Corpus) -> float:
    """Of two vectors each: a right word and its wrong ones, or the nodes of its path, for each pair or each word."""
    counts = unigrams(corpus.tokens, len(corpus.tokenizer))
    counts[corpus.tokenizer.special] = 0
    stays = kept(counts, objective.sample)
    sums = np.concatenate([[0.0], np.cumsum(stays[corpus.tokens])])
    words = np.diff(sums[corpus.sentences])  # of each sentence, when frequent ones are thinned out
    asked = neighbours(words, objective.window) if isinstance(objective, SkipGram) else float(words.sum())
    if not objective.tree:
        return asked * (1 + objective.negatives)
    share = counts * stays / max(1e-300, float((counts * stays).sum()))
    return asked * float((huffman(counts).lengths * share).sum())
