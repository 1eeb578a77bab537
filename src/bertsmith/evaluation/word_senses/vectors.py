"""Vectors of a word where it stands: of every layer of a model, the mean over the word's pieces."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import BadInput
from ...inference.predictor import Predictor
from ...metrics.scores import unit_rows
from ...model.batch import Inputs
from ...model.packing import Layout, means
from ...tokenization.tokenizer import Tokenizer
from .occurrences import Occurrence

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def in_context(predictor: Predictor, occurrences: Sequence[Occurrence], batch_tokens: int | None = None) -> list[Floats]:
    """One array (occurrences, width) for the embeddings and for each layer above them."""
    found = [pieces(predictor.tokenizer, one, predictor.length) for one in occurrences]
    layers: list[Floats] = []
    for chosen in predictor.runtime.batches(np.array([len(ids) for ids, _ in found], np.int64), batch_tokens):
        states = _states(predictor, [found[i] for i in chosen])
        layers = layers or [np.zeros((len(found), one.shape[1]), np.float32) for one in states]
        for layer, some in zip(layers, states, strict=True):
            layer[chosen] = some
    return layers


def pieces(tokenizer: Tokenizer, one: Occurrence, length: int) -> tuple[Ints, Ints]:
    """[CLS] text [SEP], and which of these are the word's; a text that is too long is cut around the word."""
    encoding = tokenizer.encode(one.text)
    mine = [i for i, (start, end) in enumerate(encoding.offsets) if start < one.end and end > one.start]
    if not mine:
        raise BadInput(f"{one.place}: the tokenizer leaves nothing of {one.word!r}; point at a word that it can read")
    room = length - 2
    begin = max(0, min((mine[0] + mine[-1] + 1 - room) // 2, len(encoding.ids) - room))
    ids = np.array([tokenizer.cls, *encoding.ids[begin : begin + room], tokenizer.sep], np.int64)
    where = np.array([i - begin + 1 for i in mine if 0 <= i - begin < room], np.int64)
    return ids, where


def _states(predictor: Predictor, some: list[tuple[Ints, Ints]]) -> list[Floats]:
    """What leaves each layer, of these words alone."""
    lengths = [len(ids) for ids, _ in some]
    starts = np.cumsum([0, *lengths[:-1]])
    rows = torch.from_numpy(np.concatenate([where + start for (_, where), start in zip(some, starts, strict=True)]))
    sizes = torch.tensor([len(where) for _, where in some])
    owner = torch.arange(len(some)).repeat_interleave(sizes)
    kept: list[torch.Tensor] = []
    with predictor.runtime.answering():
        inputs = Inputs(torch.from_numpy(np.concatenate([ids for ids, _ in some])), Layout.of(lengths))
        predictor.model(inputs.to(device := predictor.runtime.device), kept)
        return [means(state[rows.to(device)].float().cpu(), owner, sizes).numpy() for state in kept]


EQUAL = 1e-5  # cosines this near are one: static vectors are all alike, and must not be told apart by rounding


@dataclass(frozen=True)
class Scores:
    """Shares of right senses."""

    nearest: float  # that of the most similar known occurrence
    centroid: float  # that whose mean is most similar
    frequent: float  # always the most frequent one: what a reader of no context gets
    judged: int


def scored(learn: Floats, senses: Sequence[str], judge: Floats | None = None, right: Sequence[str] = ()) -> Scores:
    """Vectors with known senses, and those to be judged; without any, each is judged by all the others.

    Among equally near ones the most frequent sense counts, so that vectors without context score as no context does.
    """
    names, numbers = np.unique(np.array(senses), return_inverse=True)
    if len(learn) < 2:
        raise BadInput("senses are told apart by other sentences with known senses; give two at least")
    known, own = unit_rows(learn), np.eye(len(names))[numbers]
    if judge is None:
        return _by_the_others(known, own)
    answers = np.array([np.flatnonzero(names == sense)[0] if sense in names else -1 for sense in right])
    asked, often = unit_rows(judge), own.sum(0)
    near = _voted(asked @ known.T, own, often)
    middle = _voted(asked @ unit_rows(own.T @ known).T, np.eye(len(names)), often)
    return _scores(answers, near, middle, often)


def _by_the_others(known: Floats, own: NDArray[np.float64]) -> Scores:
    alike, answers, often = known @ known.T, own.argmax(1), own.sum(0)
    np.fill_diagonal(alike, -np.inf)
    near = _voted(alike, own, often)
    sums = (own.T @ known)[None] - own[:, :, None] * known[:, None]
    middles = np.einsum("nd,nsd->ns", known, unit_rows(sums))
    middles[own == often] = -np.inf  # of a sense with no other occurrence
    middle = _voted(middles, np.eye(own.shape[1]), often)
    return _scores(answers, near, middle, often)


def _scores(answers: Ints, nearest: Ints, centroid: Ints, often: NDArray[np.float64]) -> Scores:
    near, middle, most = (float(np.mean(found == answers)) for found in (nearest, centroid, often.argmax()))
    return Scores(near, middle, most, len(answers))


def neighbours(vectors: Floats, most: int) -> NDArray[np.int64]:
    """(occurrences, most): the most similar others of each, the nearest first."""
    alike = unit_rows(vectors) @ unit_rows(vectors).T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1, kind="stable")[:, : min(most, len(vectors) - 1)]


def _voted(alike: NDArray[np.floating], own: NDArray[np.float64], often: NDArray[np.float64]) -> NDArray[np.int64]:
    """(asked, known) similarities to a sense each: the most frequent of those that the nearest have."""
    nearest = alike >= alike.max(1, keepdims=True) - EQUAL
    return np.argmax((nearest @ own > 0) * often, axis=1)
