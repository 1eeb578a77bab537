"""What learning costs, counted alike for every member: two operations a multiply-add, and three times what the forward
pass takes, for the way back takes twice as much."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..corpus.card import unigrams
from ..corpus.store import Corpus
from ..model.batch import Batch
from ..model.model import Model
from ..objectives.base import Objective
from ..objectives.glove import Glove
from ..objectives.word2vec import Neighbours, SkipGram, Tabled
from ..planning.step import flops_of
from ..word_vectors.hierarchical_softmax import huffman
from ..word_vectors.windows import kept

Carry = tuple[Tensor, ...]
LEARNING = 3  # times the forward pass: gradients of what was read, and of the weights


def per_token(model: Model, objective: Objective, batch: Batch, carry: Carry = ()) -> float:
    """Operations that learning from this batch takes, for each of its tokens; `carry` is what it remembers.

    Counted while the model reads it once, kernel by kernel, so that any part counts that multiplies matrices: attention,
    recurrence, filters, and scores of the vocabulary for as many words as the objective asks. Attention counts all
    pairs of a sequence, also where it looks one way only. Sums, norms and activations do not count.
    """
    return LEARNING * forward(model, objective, batch, carry) / batch.tokens


def forward(model: Model, objective: Objective, batch: Batch, carry: Carry = ()) -> int:
    """Operations of the forward pass, losses of all parts counted in."""
    training = model.training
    with torch.no_grad(), Products() as products:
        objective.loss(model.eval(), batch, carry)
    model.train(training)
    return products.flops


class Products(TorchDispatchMode):
    """Counts what is multiplied under it."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += flops_of(func, args, kwargs or {}, out)
        return out


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
