"""Adaptive attention span (Sukhbaatar et al. 2019): each head learns its span, under a penalty on its length."""

import math
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...config import Fraction, NonNegFloat, PosInt
from ..packing import Layout
from ..positions import rel_shift
from ..segment_memory import LayerMemory
from .base import BaseMixerConfig, LayerState, MemoryMixer, Mixer, QKVProjection, masked_softmax
from .block_band import BlockBand

MIN_MASK = 1e-6  # lower bound of a nonzero mask value, so that the gradient of its logarithm is finite


class AdaptiveSpan(BaseMixerConfig, frozen=True, tag="adaptive-span"):
    """Adaptive-Span (Sukhbaatar et al. 2019): each head learns how far it attends.

    Soft mask m(x) = min(1, max(0, (ramp + z - x) / ramp)) on keys at distance x, z the learned span of a head.
    """

    num_attention_heads: Annotated[PosInt, "number of attention heads"] = 12
    causal: Annotated[bool, "attend only to earlier tokens (left to right)"] = False
    max_span: Annotated[PosInt, "largest span that a head can learn, in tokens; on each side unless causal"] = 1024
    span_ramp: Annotated[PosInt, "width of the soft mask's ramp beyond the span, in tokens (R in the paper: 32)"] = 32
    init_span: Annotated[Fraction, "initial span of each head, as a fraction of max_span"] = 0.0
    span_loss: Annotated[
        NonNegFloat, "weight of the span penalty in the loss: the mean span of each layer's heads, in tokens"
    ] = 2e-6
    bias: Annotated[bool, "bias terms in the linear layers"] = True

    def build(self, hidden_size: int) -> Mixer:
        return AdaptiveSpanAttention(self, hidden_size)


class BandInputs(NamedTuple):
    """Rows of tokens for the block band, and the memory before each row."""

    band: BlockBand
    seq_id: Tensor  # (rows, length)
    past_hidden: Tensor | None = None  # (rows, half_window, hidden_size)
    past_seq_id: Tensor | None = None  # (rows, half_window)


class AdaptiveSpanAttention(MemoryMixer):
    """Keys further away than the longest current span of its heads, ramp included, are neither computed nor cached.

    `forward` begins with `trim`, but for a compiled graph, whose sizes cannot depend on the values of weights.
    """

    def __init__(self, config: AdaptiveSpan, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.projections = QKVProjection(hidden_size, config.num_attention_heads, config.bias)
        self.span = nn.Parameter(
            torch.full((config.num_attention_heads,), config.init_span)
        )  # z as a fraction of config.max_span
        self.relative_position_embeddings = nn.Embedding(
            (1 if config.causal else 2) * config.max_span + 1, hidden_size // config.num_attention_heads
        )
        self.trimmed_span = self._round_span(config.init_span)

    @property
    def current_spans(self) -> Tensor:
        """(heads,): span z of each head, in positions."""
        return self.span.clamp(0, 1) * self.config.max_span

    @property
    def mem_len(self) -> int:
        return self.trimmed_span

    @property
    def max_past_len(self) -> int:
        return self.trimmed_span

    def aux_loss(self) -> Tensor:
        return self.config.span_loss * self.current_spans.mean()

    @torch.no_grad()
    def trim(self) -> None:
        """Clamps spans back into [0, 1], where they get a gradient, and trims the band to the longest span."""
        if isinstance(self.span.data, FakeTensor) or self.span.is_meta:
            return  # `plan` has no values: it counts a newly initialized model
        min_span, max_span = torch.stack(torch.aminmax(self.span.detach())).tolist()
        if self.training and (min_span < 0 or max_span > 1):
            self.span.clamp_(0, 1)
        self.trimmed_span = self._round_span(min(max(max_span, 0.0), 1.0))

    def _round_span(self, fraction: float) -> int:
        """Span plus ramp in positions, rounded up to a multiple of the ramp so that bands have few sizes."""
        ramp, max_span = self.config.span_ramp, self.config.max_span
        return min(max_span, math.ceil((fraction * max_span + ramp) / ramp) * ramp)

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        assert state is None or isinstance(state, LayerMemory)
        if not torch.compiler.is_compiling():
            self.trim()
        inputs = x[None] if state is None else layout.pad(x)
        band, seq_id, past_hidden, past_seq_id = self._band_inputs(inputs, layout, state)
        q, k, v = (t.transpose(1, 2) for t in self.projections(inputs))  # (rows, heads, length, head_dim)
        past_kv = (None, None) if past_hidden is None else [t.transpose(1, 2) for t in self.projections.project_kv(past_hidden)]
        q, k, v = band.to_query_blocks(q), band.to_key_blocks(k, past=past_kv[0]), band.to_key_blocks(v, past=past_kv[1])
        scores = q @ k.mT + rel_shift(q @ self._relative_embeddings(band, x).mT, band.keys_per_block)
        mask = band.attention_mask(seq_id, past_seq_id)[:, None]
        scores = (scores * q.shape[-1] ** -0.5).float() + self._log_span_mask(band.relative_positions(x.device))
        probs = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(v.dtype)
        out = band.from_query_blocks(probs @ v).transpose(1, 2)
        return self.projections.project_out(out[0] if state is None else layout.unpad(out))

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        """Without a memory of earlier segments."""
        self.trim()
        q, k = (layout.pad(t).transpose(1, 2) for t in self.projections(x)[:2])
        position, max_span = torch.arange(layout.max_seqlen, device=x.device), self.config.max_span
        relative_positions = position - position[:, None]
        embeddings = self.relative_position_embeddings(
            relative_positions.clamp(-max_span, 0 if self.config.causal else max_span) + max_span
        )
        scores = (q @ k.mT + torch.einsum("shqd,qkd->shqk", q, embeddings.to(q.dtype))) * q.shape[-1] ** -0.5
        in_reach = relative_positions.abs() <= self.trimmed_span
        in_reach = in_reach & (relative_positions <= 0) if self.config.causal else in_reach
        log_mask = self._log_span_mask(relative_positions).squeeze(1)
        return masked_softmax(scores + log_mask, layout.padding_mask()[:, None, None] & in_reach)

    def _band_inputs(self, hidden_states: Tensor, layout: Layout, past: LayerMemory | None) -> BandInputs:
        """Without memory one row of all packed sequences; with memory one padded row per sequence."""
        band = BlockBand(hidden_states.shape[1], self.trimmed_span, self.config.causal)
        if past is None:
            return BandInputs(band, layout.seq_id[None])
        # Rows may be as short as one token.
        band = replace(band, max_block_size=min(band.max_block_size, hidden_states.shape[1]))
        past_hidden = past.hidden_states[:, max(0, past.hidden_states.shape[1] - self.trimmed_span) :].to(hidden_states.dtype)
        padding = self.trimmed_span - past_hidden.shape[1]
        past_mask = F.pad(past.padding_mask()[:, past.hidden_states.shape[1] - past_hidden.shape[1] :], (padding, 0))
        seq_id = torch.where(layout.padding_mask(), 0, -2)
        return BandInputs(band, seq_id, F.pad(past_hidden, (0, 0, padding, 0)), torch.where(past_mask, 0, -3))

    def _log_span_mask(self, relative_positions: Tensor) -> Tensor:
        """(heads, 1, block_size, keys): logarithm of the soft mask, added to the scores; the softmax renormalizes."""
        mask = ((self.current_spans[:, None, None, None] - relative_positions.abs()) / self.config.span_ramp + 1).clamp(max=1)
        return mask.clamp(min=MIN_MASK).log().masked_fill(mask <= 0, float("-inf"))

    def _relative_embeddings(self, band: BlockBand, like: Tensor) -> Tensor:
        """(1 + keys, head_dim): embeddings of the relative positions in reach of a block, from the furthest before it."""
        relative_positions = torch.arange(band.keys_per_block + 1, device=like.device) - band.block_size - band.half_window
        max_span = self.config.max_span
        return self.relative_position_embeddings(
            relative_positions.clamp(-max_span, 0 if self.config.causal else max_span) + max_span
        ).to(like.dtype)
