"""RNN decoder with attention to the source: additive (Bahdanau et al. 2015), dot or general (Luong et al. 2015), or cosine
(Graves et al. 2014)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Probability, Variant
from ..batch import Inputs
from ..linear import Linear
from ..mixers.base import masked_softmax
from ..packing import Layout
from .base import Decoder, embed_step

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


AttentionScore = Literal["additive", "dot", "general", "cosine", "none"]

INITIAL_SHARPNESS = 10.0  # of the cosine score, which is only -1 to 1; as in Swin Transformer V2 (Liu et al. 2022)


class SourceStates(NamedTuple):
    """Padded encoder states, one row for each source."""

    hidden_states: Tensor  # (rows, source length, hidden_size)
    keys: Tensor  # hidden_states, projected for additive attention
    mask: Tensor  # (rows, source length) bool: False on padding
    mean: Tensor  # (rows, hidden_size): mean of hidden_states, the context of score=none

    def select_rows(self, row_indices: Tensor) -> "SourceStates":
        return SourceStates(*(tensor.index_select(0, row_indices) for tensor in self))


class SourceAttention(nn.Module):
    """Attention of decoder states to the encoder states; score: additive, dot, general, cosine, or none (their mean)."""

    def __init__(self, score_type: AttentionScore, hidden_size: int) -> None:
        super().__init__()
        self.score_type = score_type
        self.key = Linear(hidden_size, hidden_size, bias=False) if score_type == "additive" else None
        self.query = Linear(hidden_size, hidden_size, bias=False) if score_type in ("additive", "general") else None
        self.value = Linear(hidden_size, 1, bias=False) if score_type == "additive" else None
        self.sharpness = nn.Parameter(torch.tensor(INITIAL_SHARPNESS)) if score_type == "cosine" else None

    def prepare_source(self, hidden_states: Tensor, layout: Layout) -> SourceStates:
        """Pad the encoder states (tokens, hidden_size) and compute the keys once."""
        padded = layout.pad(hidden_states)
        return SourceStates(
            padded, padded if self.key is None else self.key(padded), layout.padding_mask(), layout.mean_pool(hidden_states)
        )

    def forward(self, queries: Tensor, source: SourceStates) -> Tensor:
        """(rows, queries, hidden_size) -> the same shape: softmax(scores) @ hidden_states."""
        if self.score_type == "none":
            return source.mean[:, None].expand_as(queries)
        return self._softmax_scores(queries, source).to(source.hidden_states.dtype) @ source.hidden_states

    def attention_weights(self, queries: Tensor, source: SourceStates) -> Tensor:
        """(rows, 1, queries, source length) float32: one head."""
        return self._softmax_scores(queries, source)[:, None]

    def _softmax_scores(self, queries: Tensor, source: SourceStates) -> Tensor:
        return masked_softmax(self.compute_scores(queries, source.keys), source.mask[:, None])

    def compute_scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(rows, queries, keys): v . tanh(W q + U h), or q . h, or (W q) . h, or beta * (q . h) / (|q| |h|), beta learned."""
        if self.sharpness is not None:
            return self.sharpness * F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT
        projected_queries = queries if self.query is None else self.query(queries)
        if self.value is None:
            return projected_queries @ keys.transpose(1, 2)
        return self.value(torch.tanh(projected_queries[:, :, None] + keys[:, None])).squeeze(-1)


CellState = tuple[Tensor, ...]  # (layers, rows, hidden_size) each: (h,) of a GRU or RNN, (h, c) of an LSTM


class RNNDecoderConfig(Variant, frozen=True, tag="rnn"):
    """GRU, LSTM or plain RNN decoder, with attention to the encoder by default (Bahdanau et al. 2015).

    h_0 = tanh(W mean(encoder states)), output tanh(V [hidden; context; token embedding]).
    """

    cell: Annotated[Literal["gru", "lstm", "rnn"], "recurrent cell; rnn: without gates (Elman 1990)"] = "gru"
    score: Annotated[
        AttentionScore,
        "attention score: additive (Bahdanau), dot or general (Luong), cosine (learned sharpness); none: mean of the source",
    ] = "additive"
    num_hidden_layers: Annotated[PosInt, "number of recurrent layers"] = 1
    hidden_dropout_prob: Annotated[Probability | None, "dropout on the output and between layers; none: as the encoder"] = None

    def build(self, encoder: "EncoderConfig") -> "RNNDecoder":
        return RNNDecoder(self, encoder)


@dataclass(frozen=True)
class RNNDecoderState:
    """Decoding state, one row for each target."""

    cell_state: CellState
    source: SourceStates
    position: int


class RNNDecoder(Decoder):
    """Recurrent decoder, see `RNNDecoderConfig`."""

    def __init__(self, config: RNNDecoderConfig, encoder: "EncoderConfig") -> None:
        super().__init__()
        hidden_size, self.is_lstm = encoder.hidden_size, config.cell == "lstm"
        dropout = encoder.hidden_dropout_prob if config.hidden_dropout_prob is None else config.hidden_dropout_prob
        # Bahdanau: the context is an input of the cell. Luong: attention reads the cell's output.
        self.attends_before_cell = config.score in ("additive", "none")
        rnn_class = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[config.cell]
        input_size = hidden_size * (1 + self.attends_before_cell)
        inter_layer_dropout = dropout if config.num_hidden_layers > 1 else 0.0
        self.cell = rnn_class(input_size, hidden_size, config.num_hidden_layers, batch_first=True, dropout=inter_layer_dropout)
        self.initial_state = Linear(hidden_size, config.num_hidden_layers * hidden_size)  # initial hidden state
        self.attention = SourceAttention(config.score, hidden_size)
        self.output, self.drop = Linear(3 * hidden_size, hidden_size), nn.Dropout(dropout)

    def forward(
        self, decoder_inputs: Inputs, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder"
    ) -> Tensor:
        source = self.attention.prepare_source(encoder_hidden_states, encoder_layout)
        outputs = decoder_inputs.layout.unpad(
            self._decode(self._init_cell_state(source), source, decoder_inputs.layout.pad(encoder.embed(decoder_inputs)))[1]
        )
        return outputs if decoder_inputs.output_indices is None else outputs.index_select(0, decoder_inputs.output_indices)

    def init_state(
        self, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder", max_length: int
    ) -> RNNDecoderState:
        source = self.attention.prepare_source(encoder_hidden_states, encoder_layout)
        return RNNDecoderState(self._init_cell_state(source), source, 0)

    def decode_step(self, state: RNNDecoderState, input_ids: Tensor, encoder: "Encoder") -> tuple[RNNDecoderState, Tensor]:
        inputs_embeds = embed_step(encoder, input_ids, state.position)[:, None]
        cell_state, outputs = self._decode(state.cell_state, state.source, inputs_embeds)
        return replace(state, cell_state=cell_state, position=state.position + 1), outputs[:, 0]

    def reorder_state(self, state: RNNDecoderState, row_indices: Tensor) -> RNNDecoderState:
        cell_state = tuple(tensor.index_select(1, row_indices) for tensor in state.cell_state)
        return RNNDecoderState(cell_state, state.source.select_rows(row_indices), state.position)

    @property
    def source_attentions(self) -> list[nn.Module]:
        return [] if self.attention.score_type == "none" else [self.attention]

    def _init_cell_state(self, source: SourceStates) -> CellState:
        hidden = (
            torch.tanh(self.initial_state(source.mean)).unflatten(-1, (self.cell.num_layers, -1)).transpose(0, 1).contiguous()
        )
        return (hidden, torch.zeros_like(hidden)) if self.is_lstm else (hidden,)

    def _decode(self, cell_state: CellState, source: SourceStates, inputs_embeds: Tensor) -> tuple[CellState, Tensor]:
        """(rows, steps, hidden_size) token embeddings -> final cell state, and outputs of the same shape."""
        if self.attention.score_type == "additive":  # the attention of a step reads the state of the step before
            hidden_steps, context_steps = [], []
            for step in range(inputs_embeds.shape[1]):
                context_steps.append(self.attention(cell_state[0][-1][:, None].to(source.keys.dtype), source))
                cell_state, hidden_step = self._run_cell(
                    cell_state, torch.cat([inputs_embeds[:, step : step + 1], context_steps[-1].to(inputs_embeds.dtype)], -1)
                )
                hidden_steps.append(hidden_step)
            hidden, context = torch.cat(hidden_steps, 1), torch.cat(context_steps, 1)
        else:
            mean_context = source.mean[:, None].expand(-1, inputs_embeds.shape[1], -1).to(inputs_embeds.dtype)
            cell_state, hidden = self._run_cell(
                cell_state, torch.cat([inputs_embeds, mean_context], -1) if self.attends_before_cell else inputs_embeds
            )
            context = self.attention(hidden, source)
        return cell_state, self.drop(
            torch.tanh(self.output(torch.cat([hidden, context.to(hidden.dtype), inputs_embeds.to(hidden.dtype)], -1)))
        )

    def _run_cell(self, cell_state: CellState, inputs: Tensor) -> tuple[CellState, Tensor]:
        dtype = self.initial_state.weight.dtype
        cell_state = tuple(tensor.to(dtype) for tensor in cell_state)
        with torch.autocast(inputs.device.type, enabled=False):  # a float16 RNN would lose small gradients
            hidden, final_state = self.cell(inputs.to(dtype), cell_state if self.is_lstm else cell_state[0])
        return (final_state if self.is_lstm else (final_state,)), hidden
