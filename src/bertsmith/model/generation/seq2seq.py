"""Texts answered by texts: an encoder-decoder, or one stack that reads the source both ways and writes on behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..batch import Inputs
from ..heads import HEAD
from ..model import Model
from ..packing import Layout
from .kv_cache import Continuing
from .search import Ints, Stepper


def stepper(model: Model, start: int, tokens: int) -> Stepper:
    """What writes at most so many tokens to each source; `start` is what a decoder's answers begin with."""
    return Translating(model, start) if model.decoder is not None else Continuing(model, tokens, joint=True)


def hidden(model: Model, source: Inputs, answer: Inputs | None) -> Tensor:
    """(tokens wanted, width): the rows that what comes next in the answers is told from.

    Without a decoder `source` holds the answers too, behind their sources.
    """
    if answer is None:
        return model(source)
    assert model.decoder is not None
    return model.decoder(answer, model(source), source.layout, model.encoder)


@dataclass(frozen=True)
class Translating:
    """An encoder-decoder: a source is read once, and every token written looks at it."""

    model: Model
    start: int

    def begin(self, prompts: Sequence[Ints]) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        source = _packed(self.model, prompts)
        state = self.model.decoder.begin(self.model(source), source.layout, self.model.encoder)
        return self.step(state, torch.full((len(prompts),), self.start, device=source.tokens.device))

    def step(self, state: Any, tokens: Tensor) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        state, rows = self.model.decoder.step(state, tokens, self.model.encoder)
        return state, self.model.scores(HEAD, rows)

    def reorder(self, state: Any, rows: Tensor) -> Any:
        assert self.model.decoder is not None
        return self.model.decoder.reorder(state, rows)


def _packed(model: Model, prompts: Sequence[Ints]) -> Inputs:
    tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts])
    return Inputs(tokens, Layout.of([len(prompt) for prompt in prompts])).to(model.encoder.tokens.weight.device)
