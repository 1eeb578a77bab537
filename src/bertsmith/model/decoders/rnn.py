"""How a recurrent decoder looks at its source: additive (Bahdanau et al. 2015), dot or general (Luong et al. 2015)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...config import PosInt, Probability, Variant
from ..batch import Inputs
from ..packing import Layout
from .base import Decoder, embed_step

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


AttentionScore = Literal["additive", "dot", "general", "none"]


class SourceStates(NamedTuple):
    """What there is to look at, padded: a row a text."""

    hidden_states: Tensor  # (rows, longest, width)
    keys: Tensor  # the same, as the scores want them
    mask: Tensor  # (rows, longest) bool
    mean: Tensor  # (rows, width): the mean of the states, all that a decoder without attention knows

    def select_rows(self, row_indices: Tensor) -> "SourceStates":
        return SourceStates(*(part.index_select(0, row_indices) for part in self))


class SourceAttention(nn.Module):
    def __init__(self, score_type: AttentionScore, hidden_size: int) -> None:
        super().__init__()
        self.score_type = score_type
        self.key = nn.Linear(hidden_size, hidden_size, bias=False) if score_type == "additive" else None
        self.query = nn.Linear(hidden_size, hidden_size, bias=False) if score_type in ("additive", "general") else None
        self.value = nn.Linear(hidden_size, 1, bias=False) if score_type == "additive" else None

    def prepare_source(self, hidden_states: Tensor, layout: Layout) -> SourceStates:
        """(tokens, width) as `layout` has them."""
        grid = layout.pad(hidden_states)
        return SourceStates(
            grid, grid if self.key is None else self.key(grid), layout.padding_mask(), layout.mean_pool(hidden_states)
        )

    def forward(self, queries: Tensor, source: SourceStates) -> Tensor:
        """(rows, queries, width) -> the same: the mean of the states, each weighed by its score."""
        if self.score_type == "none":
            return source.mean[:, None].expand_as(queries)
        scores = self.compute_scores(queries, source.keys).masked_fill(~source.mask[:, None], float("-inf"))
        return scores.float().softmax(-1).to(source.hidden_states.dtype) @ source.hidden_states

    def compute_scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(rows, queries, keys): v . tanh(W q + U h), or q . h, or (W q) . h."""
        asked = queries if self.query is None else self.query(queries)
        if self.value is None:
            return asked @ keys.transpose(1, 2)
        return self.value(torch.tanh(asked[:, :, None] + keys[:, None])).squeeze(-1)


CellState = tuple[Tensor, ...]  # of the cells, (layers, rows, width) each: one tensor of a GRU, two of an LSTM


class RNNDecoderConfig(Variant, frozen=True, tag="recurrent"):
    """It begins from the mean of the encoder's states, and says what it remembers, sees and was told last."""

    cell: Annotated[Literal["gru", "lstm"], "what remembers"] = "gru"
    score: Annotated[
        AttentionScore,
        "how it looks at the source: additive, before each step; dot or general, after it; none: at one fixed vector",
    ] = "additive"
    layers: Annotated[PosInt, "cells, one above another"] = 1
    dropout: Annotated[Probability | None, "on what is said, and between layers; as the encoder, if none"] = None

    def build(self, encoder: "EncoderConfig") -> "RNNDecoder":
        return RNNDecoder(self, encoder)


@dataclass(frozen=True)
class RNNDecoderState:
    """A row for each answer being written."""

    cell_state: CellState
    source: SourceStates
    position: int


class RNNDecoder(Decoder):
    def __init__(self, config: RNNDecoderConfig, encoder: "EncoderConfig") -> None:
        super().__init__()
        width, self.is_lstm = encoder.width, config.cell == "lstm"
        dropout = encoder.dropout if config.dropout is None else config.dropout
        self.attends_before_cell = config.score in (
            "additive",
            "none",
        )  # what is seen is read with the token, or beside what it says
        cell, inputs = nn.LSTM if self.is_lstm else nn.GRU, width * (1 + self.attends_before_cell)
        between = dropout if config.layers > 1 else 0.0
        self.cell = cell(inputs, width, config.layers, batch_first=True, dropout=between)
        self.first = nn.Linear(width, config.layers * width)
        self.look = SourceAttention(config.score, width)
        self.say, self.drop = nn.Linear(3 * width, width), nn.Dropout(dropout)

    def forward(
        self, decoder_inputs: Inputs, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder"
    ) -> Tensor:
        seen = self.look.prepare_source(encoder_hidden_states, encoder_layout)
        said = decoder_inputs.layout.unpad(
            self._decode(self._init_cell_state(seen), seen, decoder_inputs.layout.pad(encoder.embed(decoder_inputs)))[1]
        )
        return said if decoder_inputs.output_indices is None else said.index_select(0, decoder_inputs.output_indices)

    def init_state(self, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder") -> RNNDecoderState:
        seen = self.look.prepare_source(encoder_hidden_states, encoder_layout)
        return RNNDecoderState(self._init_cell_state(seen), seen, 0)

    def decode_step(self, state: RNNDecoderState, input_ids: Tensor, encoder: "Encoder") -> tuple[RNNDecoderState, Tensor]:
        told = embed_step(encoder, input_ids, state.position)[:, None]
        memory, said = self._decode(state.cell_state, state.source, told)
        return replace(state, cell_state=memory, position=state.position + 1), said[:, 0]

    def reorder_state(self, state: RNNDecoderState, row_indices: Tensor) -> RNNDecoderState:
        memory = tuple(part.index_select(1, row_indices) for part in state.cell_state)
        return RNNDecoderState(memory, state.source.select_rows(row_indices), state.position)

    def _init_cell_state(self, source: SourceStates) -> CellState:
        hidden = torch.tanh(self.first(source.mean)).unflatten(-1, (self.cell.num_layers, -1)).transpose(0, 1).contiguous()
        return (hidden, torch.zeros_like(hidden)) if self.is_lstm else (hidden,)

    def _decode(self, cell_state: CellState, source: SourceStates, inputs_embeds: Tensor) -> tuple[CellState, Tensor]:
        """(rows, steps, width) of what is told, to the same of what is said."""
        if self.look.score_type == "additive":  # what is seen at a step depends on the step before
            states, seen = [], []
            for number in range(inputs_embeds.shape[1]):
                seen.append(self.look(cell_state[0][-1][:, None].to(source.keys.dtype), source))
                cell_state, state = self._run_cell(
                    cell_state, torch.cat([inputs_embeds[:, number : number + 1], seen[-1].to(inputs_embeds.dtype)], -1)
                )
                states.append(state)
            hidden, found = torch.cat(states, 1), torch.cat(seen, 1)
        else:
            fixed = source.mean[:, None].expand(-1, inputs_embeds.shape[1], -1).to(inputs_embeds.dtype)
            cell_state, hidden = self._run_cell(
                cell_state, torch.cat([inputs_embeds, fixed], -1) if self.attends_before_cell else inputs_embeds
            )
            found = self.look(hidden, source)
        return cell_state, self.drop(
            torch.tanh(self.say(torch.cat([hidden, found.to(hidden.dtype), inputs_embeds.to(hidden.dtype)], -1)))
        )

    def _run_cell(self, cell_state: CellState, inputs: Tensor) -> tuple[CellState, Tensor]:
        kind = self.first.weight.dtype
        cell_state = tuple(part.to(kind) for part in cell_state)
        with torch.autocast(inputs.device.type, enabled=False):  # cuDNN's would be float16, which loses small gradients
            hidden, left = self.cell(inputs.to(kind), cell_state if self.is_lstm else cell_state[0])
        return (left if self.is_lstm else (left,)), hidden
