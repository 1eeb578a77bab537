"""Texts answered by texts: an encoder-decoder, or one stack that reads the source both ways and writes on behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .cached import Cache, Filling, Growing, Reached
from .generate import Ints, Stepper
from .layout import Layout
from .model import Model
from .types import Inputs

HEAD = "words"


def stepper(model: Model, start: int, tokens: int) -> Stepper:
    """What writes at most so many tokens to each source; `start` is what a decoder's answers begin with."""
    return Translating(model, start) if model.decoder is not None else Joint(model, tokens)


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


@dataclass(frozen=True)
class Joint:
    """UniLM (Dong et al. 2019): the source sees all of itself, the answer is segment B behind it and sees what came before."""

    model: Model
    tokens: int  # to be written at most, for which room is made at once

    def begin(self, prompts: Sequence[Ints]) -> tuple[Reached, Tensor]:
        source, lengths = _packed(self.model, prompts, prefixed=True), [len(prompt) for prompt in prompts]
        cache = Cache(max(lengths) + self.tokens)
        layout = Filling.around(source.layout, cache)
        rows = self.model(Inputs(source.tokens, layout, wanted=layout.lasts))
        return Reached(cache, lengths, torch.tensor(lengths, device=source.tokens.device)), self.model.scores(HEAD, rows)

    def step(self, state: Reached, tokens: Tensor) -> tuple[Reached, Tensor]:
        state.cache.turn, count = 0, len(state.lengths)
        lengths, longest = [length + 1 for length in state.lengths], max(state.lengths) + 1
        rows = torch.arange(count, device=tokens.device)
        layout = Growing(torch.ones(count), rows, rows, state.place, longest, cache=state.cache, same=min(lengths) == longest)
        found = self.model(Inputs(tokens, layout, torch.ones_like(tokens)))
        return Reached(state.cache, lengths, state.place + 1), self.model.scores(HEAD, found)

    def reorder(self, state: Reached, rows: Tensor) -> Reached:
        kept = rows.tolist()
        if kept == list(range(len(state.lengths))):
            return state
        return Reached(state.cache.chosen(rows), [state.lengths[row] for row in kept], state.place.index_select(0, rows))


def _packed(model: Model, prompts: Sequence[Ints], prefixed: bool = False) -> Inputs:
    lengths = [len(prompt) for prompt in prompts]
    tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts])
    return Inputs(tokens, Layout.of(lengths, lengths if prefixed else None)).to(model.encoder.tokens.weight.device)
