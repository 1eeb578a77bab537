"""Writing on from memory: a model that remembers reads one more token, and nothing of the text again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .fronts import ByRarity
from .generate import Ints
from .heads import HEAD
from .layout import Layout
from .memory import Memory
from .model import Model
from .types import Inputs


def steps(model: Model) -> bool:
    """It can: every layer remembers, and no token needs to be told its position."""
    encoder = model.config.encoder
    alone = encoder.front is None or isinstance(encoder.front, ByRarity)
    mixers = model.encoder.stack.mixers
    return encoder.causal and alone and encoder.table is False and bool(mixers) and all(one.remembers for one in mixers)


@dataclass(frozen=True)
class Remembering:
    """A causal model of mixer=recurrent or adaptive as a stepper: as if it read everything again, all of which it keeps."""

    model: Model
    known: int | None = None  # words of the table that there are; without it, all

    def begin(self, prompts: Sequence[Ints]) -> tuple[Memory, Tensor]:
        device = next(self.model.parameters()).device
        tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(device)
        layout = Layout.of([len(prompt) for prompt in prompts]).to(device)
        return self._read(tokens, layout, Memory.empty(len(prompts), device, whole=True))

    def step(self, state: Memory, tokens: Tensor) -> tuple[Memory, Tensor]:
        return self._read(tokens, Layout.of([1] * len(tokens)).to(tokens.device), state)

    def reorder(self, state: Memory, rows: Tensor) -> Memory:
        layers = tuple(one.index_select(0, rows) for one in state.layers)
        return Memory(state.seen.index_select(0, rows), layers, whole=True)

    def _read(self, tokens: Tensor, layout: Layout, memory: Memory) -> tuple[Memory, Tensor]:
        rows = self.model(Inputs(tokens, layout, wanted=layout.lasts, memory=memory))
        return memory.after(layout), self.model.scores(HEAD, rows)[:, : self.known]
