"""Vectors of a word where it stands: of every layer of a model, the mean over the word's pieces."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import UserError
from ...inference.predictor import Predictor
from ...metrics.scores import l2_normalize
from ...model.batch import Inputs
from ...model.packing import Layout, segment_means
from ...tokenization.tokenizer import Tokenizer
from .occurrences import Occurrence

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def compute_word_vectors(
    predictor: Predictor, occurrences: Sequence[Occurrence], batch_tokens: int | None = None
) -> list[Floats]:
    """One array (occurrences, width) for the embeddings and for each layer above them."""
    found = [encode_occurrence(predictor.tokenizer, one, predictor.length) for one in occurrences]
    layers: list[Floats] = []
    for chosen in predictor.runtime.batch_by_length(np.array([len(ids) for ids, _ in found], np.int64), batch_tokens):
        states = _layer_vectors(predictor, [found[i] for i in chosen])
        layers = layers or [np.zeros((len(found), one.shape[1]), np.float32) for one in states]
        for layer, some in zip(layers, states, strict=True):
            layer[chosen] = some
    return layers


def encode_occurrence(tokenizer: Tokenizer, occurrence: Occurrence, max_length: int) -> tuple[Ints, Ints]:
    """[CLS] text [SEP], and which of these are the word's; a text that is too long is cut around the word."""
    encoding = tokenizer.encode(occurrence.text)
    mine = [i for i, (start, end) in enumerate(encoding.offsets) if start < occurrence.end and end > occurrence.start]
    if not mine:
        raise UserError(
            f"{occurrence.location}: the tokenizer leaves nothing of {occurrence.word!r}; point at a word that it can read"
        )
    room = max_length - 2
    begin = max(0, min((mine[0] + mine[-1] + 1 - room) // 2, len(encoding.ids) - room))
    ids = np.array([tokenizer.cls_token_id, *encoding.ids[begin : begin + room], tokenizer.sep_token_id], np.int64)
    where = np.array([i - begin + 1 for i in mine if 0 <= i - begin < room], np.int64)
    return ids, where


def _layer_vectors(predictor: Predictor, encoded: list[tuple[Ints, Ints]]) -> list[Floats]:
    """What leaves each layer, of these words alone."""
    lengths = [len(ids) for ids, _ in encoded]
    starts = np.cumsum([0, *lengths[:-1]])
    rows = torch.from_numpy(np.concatenate([where + start for (_, where), start in zip(encoded, starts, strict=True)]))
    sizes = torch.tensor([len(where) for _, where in encoded])
    owner = torch.arange(len(encoded)).repeat_interleave(sizes)
    kept: list[torch.Tensor] = []
    with predictor.runtime.inference_context():
        inputs = Inputs(torch.from_numpy(np.concatenate([ids for ids, _ in encoded])), Layout.from_lengths(lengths))
        predictor.model(inputs.to(device := predictor.runtime.device), kept)
        return [segment_means(state[rows.to(device)].float().cpu(), owner, sizes).numpy() for state in kept]


COSINE_TOLERANCE = 1e-5  # cosines this near are one: static vectors are all alike, and must not be told apart by rounding


@dataclass(frozen=True)
class SenseScores:
    """Shares of right senses."""

    nearest: float  # that of the most similar known occurrence
    centroid: float  # that whose mean is most similar
    frequent: float  # always the most frequent one: what a reader of no context gets
    num_evaluated: int


def score_senses(
    train_vectors: Floats, train_senses: Sequence[str], test_vectors: Floats | None = None, test_senses: Sequence[str] = ()
) -> SenseScores:
    """Vectors with known senses, and those to be judged; without any, each is judged by all the others.

    Among equally near ones the most frequent sense counts, so that vectors without context score as no context does.
    """
    names, numbers = np.unique(np.array(train_senses), return_inverse=True)
    if len(train_vectors) < 2:
        raise UserError("senses are told apart by other sentences with known senses; give two at least")
    known, own = l2_normalize(train_vectors), np.eye(len(names))[numbers]
    if test_vectors is None:
        return _leave_one_out(known, own)
    answers = np.array([np.flatnonzero(names == sense)[0] if sense in names else -1 for sense in test_senses])
    asked, often = l2_normalize(test_vectors), own.sum(0)
    near = _vote(asked @ known.T, own, often)
    middle = _vote(asked @ l2_normalize(own.T @ known).T, np.eye(len(names)), often)
    return _compute_scores(answers, near, middle, often)


def _leave_one_out(vectors: Floats, one_hot: NDArray[np.float64]) -> SenseScores:
    alike, answers, often = vectors @ vectors.T, one_hot.argmax(1), one_hot.sum(0)
    np.fill_diagonal(alike, -np.inf)
    near = _vote(alike, one_hot, often)
    sums = (one_hot.T @ vectors)[None] - one_hot[:, :, None] * vectors[:, None]
    middles = np.einsum("nd,nsd->ns", vectors, l2_normalize(sums))
    middles[one_hot == often] = -np.inf  # of a sense with no other occurrence
    middle = _vote(middles, np.eye(one_hot.shape[1]), often)
    return _compute_scores(answers, near, middle, often)


def _compute_scores(gold: Ints, nearest: Ints, centroid: Ints, sense_counts: NDArray[np.float64]) -> SenseScores:
    near, middle, most = (float(np.mean(found == gold)) for found in (nearest, centroid, sense_counts.argmax()))
    return SenseScores(near, middle, most, len(gold))


def nearest_neighbors(vectors: Floats, k: int) -> NDArray[np.int64]:
    """(occurrences, most): the most similar others of each, the nearest first."""
    alike = l2_normalize(vectors) @ l2_normalize(vectors).T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1, kind="stable")[:, : min(k, len(vectors) - 1)]


def _vote(
    similarities: NDArray[np.floating], one_hot: NDArray[np.float64], sense_counts: NDArray[np.float64]
) -> NDArray[np.int64]:
    """(asked, known) similarities to a sense each: the most frequent of those that the nearest have."""
    nearest = similarities >= similarities.max(1, keepdims=True) - COSINE_TOLERANCE
    return np.argmax((nearest @ one_hot > 0) * sense_counts, axis=1)
