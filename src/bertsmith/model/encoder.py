"""An encoder: tokens, places and segments to vectors, then a stack of blocks."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput
from .batch import Inputs
from .config import EncoderConfig
from .mixers.reformer.reversible import Twice
from .positions import Axial, sinusoid
from .presets import PRESETS
from .sublayers import ACTIVATIONS, Join, halved
from .transformer import Stack

EncoderConfig.presets.update(PRESETS)


class Encoder(nn.Module):
    waves: Tensor | None  # (positions, width) of fixed positions

    def __init__(self, config: EncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.tokens: nn.Embedding = nn.Embedding(vocabulary, config.tabled) if config.tabled else None  # type: ignore[assignment]
        self.front = config.front.build(config.width, vocabulary) if config.front else None
        self.positions = nn.Embedding(config.positions, config.embedded) if config.table is True else None
        axial = config.table if isinstance(config.table, Axial) else None
        self.axial = axial.build(config.positions, config.embedded) if axial else None
        waves = sinusoid(config.positions, config.embedded) if config.table == "sinusoid" else None
        self.register_buffer("waves", waves, persistent=False)
        self.segments = nn.Embedding(config.segments, config.embedded) if config.segments else None
        self.norm = config.join(config.embedded) if config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.widen = _widened(config)
        self.stack = Stack(config)
        self.pooler = nn.Linear(config.width, config.width) if config.pooler != "none" else nn.Identity()

    def forward(self, inputs: Inputs, kept: list[Tensor] | None = None) -> Tensor:
        """(tokens, width), or of those wanted; embedded tokens and what leaves each block go into `kept`, if it is given."""
        x = self.embed(inputs)
        if kept is not None:
            kept.append(x)
        for mixer in self.stack.mixers:
            mixer.ready()
        return self.stack(x, inputs.layout, kept, inputs.wanted, inputs.memory)

    def texts(self, inputs: Inputs, hidden: Tensor | None = None) -> Tensor:
        """(sequences, width): the row that stands for each text, yet to be pooled; of `hidden`, if all rows are there."""
        layout = inputs.layout
        if self.config.pool == "token":
            wanted = layout.lasts if self.config.causal else layout.firsts
            return self(replace(inputs, wanted=wanted)) if hidden is None else hidden.index_select(0, wanted)
        hidden = self(inputs) if hidden is None else hidden
        return layout.mean(hidden) if self.config.pool == "mean" else layout.most(hidden)

    def pool(self, rows: Tensor) -> Tensor:
        """(rows, width): what stands for whole texts, from the token of each that does."""
        return rows if self.config.pooler == "none" else ACTIVATIONS[self.config.pooler](self.pooler(rows))

    def embed(self, inputs: Inputs) -> Tensor:
        """(tokens, width): what enters the first block, here or of a decoder."""
        return self.widen(self.tabled(inputs))

    def tabled(self, inputs: Inputs) -> Tensor:
        """(tokens, width of the tables): their sum, normed."""
        limit = self.config.positions
        if inputs.layout.longest > limit:
            raise BadInput(f"a text of {inputs.layout.longest} tokens is longer than the model's {limit} positions; cut it, or "
                           f"build the model with model.positions={inputs.layout.longest}")  # fmt: skip
        x = self._looked_up(inputs)
        x = x * x.shape[-1] ** 0.5 if self.config.scaled else x
        x = x if self.segments is None else x + F.embedding(self._kinds(inputs), halved(self.segments.weight))
        x = x if self.positions is None else x + F.embedding(inputs.layout.place, halved(self.positions.weight))
        x = x if self.axial is None else x + self.axial(inputs.layout.place)
        x = x if self.waves is None else x + self.waves.to(x.dtype)[inputs.layout.place]
        x = x if inputs.nudge is None else x + inputs.nudge
        return self.drop(self.norm(x, None)[0] if isinstance(self.norm, Join) else x)

    def _looked_up(self, inputs: Inputs) -> Tensor:
        if self.front is None:
            return F.embedding(inputs.tokens, halved(self.tokens.weight))
        return halved(self.front(inputs.tokens, inputs.layout, self.tokens))

    def _kinds(self, inputs: Inputs) -> Tensor:
        """(tokens,): segment A or B of each."""
        if inputs.segments is None or self.config.segments == 1:  # such a model was never told of a segment B
            return torch.zeros_like(inputs.tokens)
        return inputs.segments


def _widened(config: EncoderConfig) -> nn.Module:
    """From the tables' width to the model's."""
    if config.embedding is None or config.front:
        return nn.Identity()
    if config.reversible == "halves" and 2 * config.embedding == config.width:
        return Twice()
    return nn.Linear(config.embedding, config.width)
