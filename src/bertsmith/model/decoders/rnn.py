"""How a recurrent decoder looks at its source: additive (Bahdanau et al. 2015), dot or general (Luong et al. 2015)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...config import Chance, Count, Variant
from ..batch import Inputs
from ..packing import Layout
from .base import Decoder, looked_up

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


Score = Literal["additive", "dot", "general", "none"]


class Source(NamedTuple):
    """What there is to look at, padded: a row a text."""

    states: Tensor  # (rows, longest, width)
    keys: Tensor  # the same, as the scores want them
    real: Tensor  # (rows, longest) bool
    whole: Tensor  # (rows, width): the mean of the states, all that a decoder without attention knows

    def of(self, rows: Tensor) -> "Source":
        return Source(*(part.index_select(0, rows) for part in self))


class Looking(nn.Module):
    def __init__(self, score: Score, width: int) -> None:
        super().__init__()
        self.score = score
        self.key = nn.Linear(width, width, bias=False) if score == "additive" else None
        self.query = nn.Linear(width, width, bias=False) if score in ("additive", "general") else None
        self.value = nn.Linear(width, 1, bias=False) if score == "additive" else None

    def source(self, states: Tensor, layout: Layout) -> Source:
        """(tokens, width) as `layout` has them."""
        grid = layout.grid(states)
        return Source(grid, grid if self.key is None else self.key(grid), layout.real(), layout.mean(states))

    def forward(self, queries: Tensor, source: Source) -> Tensor:
        """(rows, queries, width) -> the same: the mean of the states, each weighed by its score."""
        if self.score == "none":
            return source.whole[:, None].expand_as(queries)
        scores = self.scores(queries, source.keys).masked_fill(~source.real[:, None], float("-inf"))
        return scores.float().softmax(-1).to(source.states.dtype) @ source.states

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(rows, queries, keys): v . tanh(W q + U h), or q . h, or (W q) . h."""
        asked = queries if self.query is None else self.query(queries)
        if self.value is None:
            return asked @ keys.transpose(1, 2)
        return self.value(torch.tanh(asked[:, :, None] + keys[:, None])).squeeze(-1)


Memory = tuple[Tensor, ...]  # of the cells, (layers, rows, width) each: one tensor of a GRU, two of an LSTM


class Recurrent(Variant, frozen=True):
    """It begins from the mean of the encoder's states, and says what it remembers, sees and was told last."""

    cell: Annotated[Literal["gru", "lstm"], "what remembers"] = "gru"
    score: Annotated[
        Score, "how it looks at the source: additive, before each step; dot or general, after it; none: at one fixed vector"
    ] = "additive"
    layers: Annotated[Count, "cells, one above another"] = 1
    dropout: Annotated[Chance | None, "on what is said, and between layers; as the encoder, if none"] = None

    def build(self, encoder: "EncoderConfig") -> "RecurrentDecoder":
        return RecurrentDecoder(self, encoder)


@dataclass(frozen=True)
class State:
    """A row for each answer being written."""

    memory: Memory
    source: Source
    place: int


class RecurrentDecoder(Decoder):
    def __init__(self, config: Recurrent, encoder: "EncoderConfig") -> None:
        super().__init__()
        width, self.lstm = encoder.width, config.cell == "lstm"
        dropout = encoder.dropout if config.dropout is None else config.dropout
        self.looks_first = config.score in ("additive", "none")  # what is seen is read with the token, or beside what it says
        cell, inputs = nn.LSTM if self.lstm else nn.GRU, width * (1 + self.looks_first)
        between = dropout if config.layers > 1 else 0.0
        self.cell = cell(inputs, width, config.layers, batch_first=True, dropout=between)
        self.first = nn.Linear(width, config.layers * width)
        self.look = Looking(config.score, width)
        self.say, self.drop = nn.Linear(3 * width, width), nn.Dropout(dropout)

    def forward(self, answer: Inputs, source: Tensor, layout: Layout, encoder: "Encoder") -> Tensor:
        seen = self.look.source(source, layout)
        said = answer.layout.flat(self._said(self._first(seen), seen, answer.layout.grid(encoder.embed(answer)))[1])
        return said if answer.wanted is None else said.index_select(0, answer.wanted)

    def begin(self, source: Tensor, layout: Layout, encoder: "Encoder") -> State:
        seen = self.look.source(source, layout)
        return State(self._first(seen), seen, 0)

    def step(self, state: State, tokens: Tensor, encoder: "Encoder") -> tuple[State, Tensor]:
        told = looked_up(encoder, tokens, state.place)[:, None]
        memory, said = self._said(state.memory, state.source, told)
        return replace(state, memory=memory, place=state.place + 1), said[:, 0]

    def reorder(self, state: State, rows: Tensor) -> State:
        memory = tuple(part.index_select(1, rows) for part in state.memory)
        return State(memory, state.source.of(rows), state.place)

    def _first(self, source: Source) -> Memory:
        hidden = torch.tanh(self.first(source.whole)).unflatten(-1, (self.cell.num_layers, -1)).transpose(0, 1).contiguous()
        return (hidden, torch.zeros_like(hidden)) if self.lstm else (hidden,)

    def _said(self, memory: Memory, source: Source, told: Tensor) -> tuple[Memory, Tensor]:
        """(rows, steps, width) of what is told, to the same of what is said."""
        if self.look.score == "additive":  # what is seen at a step depends on the step before
            states, seen = [], []
            for number in range(told.shape[1]):
                seen.append(self.look(memory[0][-1][:, None].to(source.keys.dtype), source))
                memory, state = self._run(memory, torch.cat([told[:, number : number + 1], seen[-1].to(told.dtype)], -1))
                states.append(state)
            hidden, found = torch.cat(states, 1), torch.cat(seen, 1)
        else:
            fixed = source.whole[:, None].expand(-1, told.shape[1], -1).to(told.dtype)
            memory, hidden = self._run(memory, torch.cat([told, fixed], -1) if self.looks_first else told)
            found = self.look(hidden, source)
        return memory, self.drop(torch.tanh(self.say(torch.cat([hidden, found.to(hidden.dtype), told.to(hidden.dtype)], -1))))

    def _run(self, memory: Memory, told: Tensor) -> tuple[Memory, Tensor]:
        kind = self.first.weight.dtype
        memory = tuple(part.to(kind) for part in memory)
        with torch.autocast(told.device.type, enabled=False):  # cuDNN's would be float16, which loses small gradients
            hidden, left = self.cell(told.to(kind), memory if self.lstm else memory[0])
        return (left if self.lstm else (left,)), hidden
