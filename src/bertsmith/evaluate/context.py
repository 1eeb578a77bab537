"""Vectors of a word where it stands: of every layer of a model, the mean over the word's pieces."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import BadInput
from ..model.layout import Layout, means
from ..model.types import Inputs
from ..predict import Predictor
from ..text.tokenizer import Tokenizer
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
