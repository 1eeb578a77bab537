"""Training FLOPs, counted alike for every model: two per multiply-add, and three times the forward pass (backward costs
twice as much as forward)."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..corpus.card import count_unigrams
from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.model import Model
from ..objectives.base import PretrainObjective
from ..objectives.glove import Glove
from ..objectives.word2vec import SkipGram, Word2VecObjective, WordVectorObjective
from ..planning.step import count_flops
from ..train.objective import Batch
from ..word_vectors.hierarchical_softmax import build_huffman_paths
from ..word_vectors.windows import keep_probabilities

RecurrentState = tuple[Tensor, ...]
Floats = NDArray[np.float64]
TRAIN_FORWARD_RATIO = 3  # forward, gradients of the inputs, gradients of the weights


def train_flops_per_token(
    model: Model, objective: PretrainObjective, batch: Batch[Inputs], recurrent_state: RecurrentState = ()
) -> float:
    """Training FLOPs per token of this batch, with the given recurrent state (memory).

    Counted kernel by kernel in one forward pass, so every matrix product counts: attention, recurrence, convolutions, and
    vocabulary logits at as many positions as the objective predicts. Attention counts all pairs of a sequence, also where
    it is causal. Sums, norms and activations are not counted.
    """
    return TRAIN_FORWARD_RATIO * forward_flops(model, objective, batch, recurrent_state) / batch.num_tokens


def forward_flops(
    model: Model, objective: PretrainObjective, batch: Batch[Inputs], recurrent_state: RecurrentState = ()
) -> int:
    """FLOPs of the forward pass, including all losses of the objective."""
    was_training = model.training
    with torch.no_grad(), FlopCounter() as counter:
        objective.compute_loss(model.eval(), batch, recurrent_state)
    model.train(was_training)
    return counter.flops


class FlopCounter(TorchDispatchMode):
    """Dispatch mode that sums the FLOPs of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += count_flops(func, args, kwargs or {}, out)
        return out


def epoch_flops(objective: WordVectorObjective, corpus: Corpus) -> float:
    """Expected FLOPs of one epoch of word vectors; for GloVe, which reads co-occurrence counts, an upper bound."""
    if isinstance(objective, Word2VecObjective):
        return TRAIN_FORWARD_RATIO * 2 * objective.vector_size * _count_dot_products(objective, corpus)
    assert isinstance(objective, Glove)
    lengths = np.diff(corpus.sentence_offsets if objective.within == "sentence" else corpus.document_token_offsets).astype(
        np.float64
    )
    return glove_flops(
        objective, float(sum(2 * np.maximum(lengths - distance, 0).sum() for distance in range(1, objective.window + 1)))
    )


def glove_flops(objective: Glove, num_pairs: float) -> float:
    """FLOPs of `num_pairs` dot products of two vectors with their biases."""
    return TRAIN_FORWARD_RATIO * 2 * (objective.vector_size + 2) * num_pairs


def count_pairs(sentence_lengths: Floats, window: int) -> float:
    """Expected (center, context) pairs in sentences of these lengths, window sizes uniform in 1 to `window`."""
    return float(
        sum(
            2 * np.maximum(sentence_lengths - distance, 0).sum() * (window - distance + 1) / window
            for distance in range(1, window + 1)
        )
    )


def _count_dot_products(objective: Word2VecObjective, corpus: Corpus) -> float:
    """Expected dot products per epoch: per pair (skip-gram) or per word (CBOW), 1 + negatives, or the Huffman path's length."""
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    counts[corpus.tokenizer.is_special] = 0
    keep_probs = keep_probabilities(counts, objective.sample)
    cumulative = np.concatenate([[0.0], np.cumsum(keep_probs[corpus.tokens])])
    lengths = np.diff(cumulative[corpus.sentence_offsets])  # expected sentence lengths after subsampling of frequent words
    num_predictions = count_pairs(lengths, objective.window) if isinstance(objective, SkipGram) else float(lengths.sum())
    if not objective.hs:
        return num_predictions * (1 + objective.negative)
    word_probs = counts * keep_probs / max(1e-300, float((counts * keep_probs).sum()))
    return num_predictions * float((build_huffman_paths(counts).lengths * word_probs).sum())
