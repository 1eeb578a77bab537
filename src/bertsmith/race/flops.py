"""What learning costs, counted alike for every member: two operations a multiply-add, and three times what the forward
pass takes, for the way back takes twice as much."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..corpus.card import count_unigrams
from ..corpus.store import Corpus
from ..model.batch import Batch
from ..model.model import Model
from ..objectives.base import PretrainObjective
from ..objectives.glove import Glove
from ..objectives.word2vec import SkipGram, Word2VecObjective, WordVectorObjective
from ..planning.step import count_flops
from ..word_vectors.hierarchical_softmax import build_huffman_paths
from ..word_vectors.windows import keep_probabilities

RecurrentState = tuple[Tensor, ...]
TRAIN_FORWARD_RATIO = 3  # times the forward pass: gradients of what was read, and of the weights


def train_flops_per_token(
    model: Model, objective: PretrainObjective, batch: Batch, recurrent_state: RecurrentState = ()
) -> float:
    """Operations that learning from this batch takes, for each of its tokens; `carry` is what it remembers.

    Counted while the model reads it once, kernel by kernel, so that any part counts that multiplies matrices: attention,
    recurrence, filters, and scores of the vocabulary for as many words as the objective asks. Attention counts all
    pairs of a sequence, also where it looks one way only. Sums, norms and activations do not count.
    """
    return TRAIN_FORWARD_RATIO * forward_flops(model, objective, batch, recurrent_state) / batch.num_tokens


def forward_flops(model: Model, objective: PretrainObjective, batch: Batch, recurrent_state: RecurrentState = ()) -> int:
    """Operations of the forward pass, losses of all parts counted in."""
    training = model.training
    with torch.no_grad(), FlopCounter() as products:
        objective.compute_loss(model.eval(), batch, recurrent_state)
    model.train(training)
    return products.flops


class FlopCounter(TorchDispatchMode):
    """Counts what is multiplied under it."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += count_flops(func, args, kwargs or {}, out)
        return out


Floats = NDArray[np.float64]


def epoch_flops(objective: WordVectorObjective, corpus: Corpus) -> float:
    """Operations of one pass over the corpus, in expectation; for GloVe, which passes over counts, no more than these."""
    if isinstance(objective, Word2VecObjective):
        return TRAIN_FORWARD_RATIO * 2 * objective.width * _count_dot_products(objective, corpus)
    assert isinstance(objective, Glove)
    words = np.diff(corpus.sentence_offsets if objective.within == "sentence" else corpus.document_token_offsets).astype(
        np.float64
    )
    return glove_flops(objective, float(sum(2 * np.maximum(words - far, 0).sum() for far in range(1, objective.window + 1))))


def glove_flops(objective: Glove, num_pairs: float) -> float:
    """Of so many products of two rows, biases counted in."""
    return TRAIN_FORWARD_RATIO * 2 * (objective.width + 2) * num_pairs


def count_pairs(sentence_lengths: Floats, window: int) -> float:
    """Pairs of a word and a neighbour in sentences of so many words, each window drawn from 1 up to `window`."""
    return float(
        sum(2 * np.maximum(sentence_lengths - far, 0).sum() * (window - far + 1) / window for far in range(1, window + 1))
    )


def _count_dot_products(objective: Word2VecObjective, corpus: Corpus) -> float:
    """Of two vectors each: a right word and its wrong ones, or the nodes of its path, for each pair or each word."""
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    counts[corpus.tokenizer.is_special] = 0
    stays = keep_probabilities(counts, objective.sample)
    sums = np.concatenate([[0.0], np.cumsum(stays[corpus.tokens])])
    words = np.diff(sums[corpus.sentence_offsets])  # of each sentence, when frequent ones are thinned out
    asked = count_pairs(words, objective.window) if isinstance(objective, SkipGram) else float(words.sum())
    if not objective.tree:
        return asked * (1 + objective.negatives)
    share = counts * stays / max(1e-300, float((counts * stays).sum()))
    return asked * float((build_huffman_paths(counts).lengths * share).sum())
