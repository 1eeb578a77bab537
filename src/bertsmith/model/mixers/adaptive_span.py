"""Adaptive span (Sukhbaatar et al. 2019): each head learns how far it looks, and pays for the distance."""

import math
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...config import Fraction, NonNegFloat, PosInt, Variant
from ..packing import Layout
from ..positions import rel_shift
from ..segment_memory import LayerMemory
from .base import Mixer, QKVProjection
from .block_band import BlockBand

MIN_MASK = 1e-6  # of a weight that is not nothing: its logarithm has a slope


class AdaptiveSpan(Variant, frozen=True, tag="adaptive"):
    """What stands x positions away counts min(1, max(0, (ramp + z - x) / ramp)) times, z a head's span."""

    heads: Annotated[PosInt, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = False
    longest: Annotated[PosInt, "positions that a head can learn to see, on either side unless causal"] = 1024
    ramp: Annotated[PosInt, "positions over which sight fades, behind the span"] = 32
    begin: Annotated[Fraction, "the span of new heads, as a share of the longest"] = 0.0
    price: Annotated[NonNegFloat, "what a position of span costs, in the loss; of each layer the mean of its heads"] = 2e-6
    bias: Annotated[bool, "add a bias after each matrix"] = True

    def build(self, hidden_size: int) -> Mixer:
        return AdaptiveSpanAttention(self, hidden_size)


class BandInputs(NamedTuple):
    """Tokens in rows for a band, and what stands before each row."""

    band: BlockBand
    seq_id: Tensor  # (rows, length)
    past_hidden: Tensor | None = None  # (rows, reach, width)
    past_seq_id: Tensor | None = None  # (rows, reach)


class AdaptiveSpanAttention(Mixer):
    """No key further away than the longest span of its heads, ramp included, is looked at or remembered.

    The encoder calls `ready` before each pass; who calls a mixer alone, and has changed its spans, does so too.
    """

    def __init__(self, config: AdaptiveSpan, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.project = QKVProjection(hidden_size, config.heads, config.bias)
        self.span = nn.Parameter(torch.full((config.heads,), config.begin))  # as shares of the longest
        self.places = nn.Embedding((1 if config.causal else 2) * config.longest + 1, hidden_size // config.heads)
        self.trimmed_span = self._round_span(config.begin)

    @property
    def current_spans(self) -> Tensor:
        """(heads,): how far each looks before sight fades, in positions."""
        return self.span.clamp(0, 1) * self.config.longest

    @property
    def mem_len(self) -> int:
        return self.trimmed_span

    @property
    def max_past_len(self) -> int:
        return self.trimmed_span

    def penalty(self) -> Tensor:
        return self.config.price * self.current_spans.mean()

    @torch.no_grad()
    def prepare_forward(self) -> None:
        """Brings spans that drifted past their ends back, where a slope still reaches them, and trims what is computed."""
        if isinstance(self.span.data, FakeTensor) or self.span.is_meta:
            return  # which `plan` counts: a new model
        least, most = torch.stack(torch.aminmax(self.span.detach())).tolist()
        if self.training and (least < 0 or most > 1):
            self.span.clamp_(0, 1)
        self.trimmed_span = self._round_span(min(max(most, 0.0), 1.0))

    def _round_span(self, fraction: float) -> int:
        """In steps of a ramp: bands of few sizes."""
        ramp, longest = self.config.ramp, self.config.longest
        return min(longest, math.ceil((fraction * longest + ramp) / ramp) * ramp)

    def forward(self, x: Tensor, layout: Layout, past: LayerMemory | None = None) -> Tensor:
        rows = x[None] if past is None else layout.pad(x)
        band, owner, before, before_owner = self._band_inputs(rows, layout, past)
        q, k, v = (part.transpose(1, 2) for part in self.project(rows))  # (rows, heads, length, width of a head)
        old = (None, None) if before is None else [part.transpose(1, 2) for part in self.project.project_kv(before)]
        q, k, v = band.to_query_blocks(q), band.to_key_blocks(k, past=old[0]), band.to_key_blocks(v, past=old[1])
        scores = q @ k.mT + rel_shift(q @ self._relative_embeddings(band, x).mT, band.keys_per_block)
        seen = band.attention_mask(owner, before_owner)[:, None]
        scores = (scores * q.shape[-1] ** -0.5).float() + self._log_span_mask(band.relative_positions(x.device))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(v.dtype)
        mixed = band.from_query_blocks(weights @ v).transpose(1, 2)
        return self.project.project_out(mixed[0] if past is None else layout.unpad(mixed))

    def _band_inputs(self, hidden_states: Tensor, layout: Layout, past: LayerMemory | None) -> BandInputs:
        """One long row of all sequences; or, where each goes on from something, a row each."""
        band = BlockBand(hidden_states.shape[1], self.trimmed_span, self.config.causal)
        if past is None:
            return BandInputs(band, layout.seq_id[None])
        band = replace(
            band, max_block_size=min(band.max_block_size, hidden_states.shape[1])
        )  # of rows as short as one token, too
        latest = past.hidden_states[:, max(0, past.hidden_states.shape[1] - self.trimmed_span) :].to(hidden_states.dtype)
        gap = self.trimmed_span - latest.shape[1]
        real = F.pad(past.padding_mask()[:, past.hidden_states.shape[1] - latest.shape[1] :], (gap, 0))
        owner = torch.where(layout.padding_mask(), 0, -2)
        return BandInputs(band, owner, F.pad(latest, (0, 0, gap, 0)), torch.where(real, 0, -3))

    def _log_span_mask(self, relative_positions: Tensor) -> Tensor:
        """(heads, 1, block, sight): logarithms of the share that counts, for a softmax that renormalises by itself."""
        share = ((self.current_spans[:, None, None, None] - relative_positions.abs()) / self.config.ramp + 1).clamp(max=1)
        return share.clamp(min=MIN_MASK).log().masked_fill(share <= 0, float("-inf"))

    def _relative_embeddings(self, band: BlockBand, like: Tensor) -> Tensor:
        """(1 + sight, width of a head): the place of each distance that a block can meet, from the furthest before it."""
        ahead = torch.arange(band.keys_per_block + 1, device=like.device) - band.block_size - band.half_window
        longest = self.config.longest
        return self.places(ahead.clamp(-longest, 0 if self.config.causal else longest) + longest).to(like.dtype)
