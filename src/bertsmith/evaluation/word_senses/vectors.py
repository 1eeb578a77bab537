"""Contextual word vectors of every layer (mean over the word's subwords), and the accuracy of sense classifiers on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import UserError
from ...inference.engines.torch import TorchEngine
from ...inference.predictor import Predictor
from ...metrics.scores import l2_normalize
from ...model.batch import Inputs
from ...model.packing import Layout, segment_means
from ...tokenization.tokenizer import Tokenizer
from .occurrences import Occurrence

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
COSINE_TOLERANCE = 1e-5  # cosines this close are ties: static vectors are all equal, and rounding errors must not break ties


@dataclass(frozen=True)
class SenseScores:
    """Accuracies of three classifiers."""

    nearest_neighbor: float  # the sense of the most similar training occurrence (1-NN by cosine)
    nearest_centroid: float  # the sense with the most similar centroid
    majority_baseline: float  # always the most frequent sense
    num_evaluated: int


def compute_word_vectors(
    predictor: Predictor, occurrences: Sequence[Occurrence], batch_tokens: int | None = None
) -> list[Floats]:
    """One array (occurrences, hidden size) for the embeddings and for each layer."""
    encoded = [encode_occurrence(predictor.tokenizer, occurrence, predictor.max_length) for occurrence in occurrences]
    layers: list[Floats] = []
    engine = predictor.require_torch("the hidden states of every layer")
    for batch in engine.batch_by_length(np.array([len(ids) for ids, _ in encoded], np.int64), batch_tokens):
        batch_vectors = _layer_vectors(engine, [encoded[i] for i in batch])
        layers = layers or [np.zeros((len(encoded), occurrence.shape[1]), np.float32) for occurrence in batch_vectors]
        for layer, vectors in zip(layers, batch_vectors, strict=True):
            layer[batch] = vectors
    return layers


def encode_occurrence(tokenizer: Tokenizer, occurrence: Occurrence, max_length: int) -> tuple[Ints, Ints]:
    """(token ids of [CLS] text [SEP], indices of the word's tokens); a long text is truncated around the word."""
    encoding = tokenizer.encode(occurrence.text)
    word_tokens = [i for i, (start, end) in enumerate(encoding.offsets) if start < occurrence.end and end > occurrence.start]
    if not word_tokens:
        raise UserError(f"{occurrence.location}: the tokenizer has no tokens for {occurrence.word!r}; mark another word")
    max_tokens = max_length - 2
    begin = max(0, min((word_tokens[0] + word_tokens[-1] + 1 - max_tokens) // 2, len(encoding.ids) - max_tokens))
    ids = np.array([tokenizer.cls_token_id, *encoding.ids[begin : begin + max_tokens], tokenizer.sep_token_id], np.int64)
    word_indices = np.array([i - begin + 1 for i in word_tokens if 0 <= i - begin < max_tokens], np.int64)
    return ids, word_indices


def score_senses(
    train_vectors: Floats, train_senses: Sequence[str], test_vectors: Floats | None = None, test_senses: Sequence[str] = ()
) -> SenseScores:
    """Accuracy on the test vectors, or by leave-one-out on the training vectors where there are none.

    Ties go to the most frequent sense, so that static vectors score exactly as the majority baseline.
    """
    names, sense_ids = np.unique(np.array(train_senses), return_inverse=True)
    if len(train_vectors) < 2:
        raise UserError("scoring senses needs at least two sentences with a known sense")
    train, one_hot = l2_normalize(train_vectors), np.eye(len(names))[sense_ids]  # (train, hidden size), (train, senses)
    if test_vectors is None:
        return _leave_one_out(train, one_hot)
    gold = np.array([np.flatnonzero(names == sense)[0] if sense in names else -1 for sense in test_senses])
    test, sense_counts = l2_normalize(test_vectors), one_hot.sum(0)
    nearest = _vote(test @ train.T, one_hot, sense_counts)
    centroid = _vote(test @ l2_normalize(one_hot.T @ train).T, np.eye(len(names)), sense_counts)
    return _compute_scores(gold, nearest, centroid, sense_counts)


def nearest_neighbors(vectors: Floats, k: int) -> NDArray[np.int64]:
    """(occurrences, k): indices of the k most similar other occurrences by cosine, most similar first."""
    similarities = l2_normalize(vectors) @ l2_normalize(vectors).T
    np.fill_diagonal(similarities, -np.inf)
    return np.argsort(-similarities, axis=1, kind="stable")[:, : min(k, len(vectors) - 1)]


def _layer_vectors(engine: TorchEngine, encoded: list[tuple[Ints, Ints]]) -> list[Floats]:
    """Per layer, (words, hidden size): mean of the hidden states of each word's tokens."""
    lengths = [len(ids) for ids, _ in encoded]
    offsets = np.cumsum([0, *lengths[:-1]])
    rows = torch.from_numpy(
        np.concatenate([word_indices + start for (_, word_indices), start in zip(encoded, offsets, strict=True)])
    )
    num_tokens = torch.tensor([len(word_indices) for _, word_indices in encoded])
    word_ids = torch.arange(len(encoded)).repeat_interleave(num_tokens)
    hidden_states: list[torch.Tensor] = []
    with engine.inference_context():
        inputs = Inputs(torch.from_numpy(np.concatenate([ids for ids, _ in encoded])), Layout.from_lengths(lengths))
        engine.model(inputs.to(device := engine.device), hidden_states)
        return [segment_means(layer[rows.to(device)].float().cpu(), word_ids, num_tokens).numpy() for layer in hidden_states]


def _leave_one_out(vectors: Floats, one_hot: NDArray[np.float64]) -> SenseScores:
    similarities, gold, sense_counts = vectors @ vectors.T, one_hot.argmax(1), one_hot.sum(0)
    np.fill_diagonal(similarities, -np.inf)
    nearest = _vote(similarities, one_hot, sense_counts)
    sums = (one_hot.T @ vectors)[None] - one_hot[:, :, None] * vectors[:, None]
    centroid_similarities = np.einsum("nd,nsd->ns", vectors, l2_normalize(sums))
    centroid_similarities[one_hot == sense_counts] = -np.inf  # a sense with no other occurrence has no centroid
    centroid = _vote(centroid_similarities, np.eye(one_hot.shape[1]), sense_counts)
    return _compute_scores(gold, nearest, centroid, sense_counts)


def _compute_scores(gold: Ints, nearest: Ints, centroid: Ints, sense_counts: NDArray[np.float64]) -> SenseScores:
    nearest_accuracy, centroid_accuracy, majority_accuracy = (
        float(np.mean(predicted == gold)) for predicted in (nearest, centroid, sense_counts.argmax())
    )
    return SenseScores(nearest_accuracy, centroid_accuracy, majority_accuracy, len(gold))


def _vote(
    similarities: NDArray[np.floating], one_hot: NDArray[np.float64], sense_counts: NDArray[np.float64]
) -> NDArray[np.int64]:
    """(test, train) similarities and (train, senses) one-hot to (test,): the most frequent sense among the nearest."""
    nearest = similarities >= similarities.max(1, keepdims=True) - COSINE_TOLERANCE
    return np.argmax((nearest @ one_hot > 0) * sense_counts, axis=1)
