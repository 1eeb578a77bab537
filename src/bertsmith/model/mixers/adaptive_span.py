"""Adaptive span (Sukhbaatar et al. 2019): each head learns how far it looks, and pays for the distance."""

import math
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...config import Amount, Count, Share, Variant
from ..packing import Layout
from ..positions import by_key
from ..segment_memory import Past
from .base import Heads, Mixer
from .block_band import Band

LEAST = 1e-6  # of a weight that is not nothing: its logarithm has a slope


class Adaptive(Variant, frozen=True):
    """What stands x positions away counts min(1, max(0, (ramp + z - x) / ramp)) times, z a head's span."""

    heads: Annotated[Count, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = False
    longest: Annotated[Count, "positions that a head can learn to see, on either side unless causal"] = 1024
    ramp: Annotated[Count, "positions over which sight fades, behind the span"] = 32
    begin: Annotated[Share, "the span of new heads, as a share of the longest"] = 0.0
    price: Annotated[Amount, "what a position of span costs, in the loss; of each layer the mean of its heads"] = 2e-6
    bias: Annotated[bool, "add a bias after each matrix"] = True

    def build(self, width: int) -> Mixer:
        return AdaptiveAttention(self, width)


class Lying(NamedTuple):
    """Tokens in rows for a band, and what stands before each row."""

    band: Band
    owner: Tensor  # (rows, length)
    before: Tensor | None = None  # (rows, reach, width)
    before_owner: Tensor | None = None  # (rows, reach)


class AdaptiveAttention(Mixer):
    """No key further away than the longest span of its heads, ramp included, is looked at or remembered.

    The encoder calls `ready` before each pass; who calls a mixer alone, and has changed its spans, does so too.
    """

    def __init__(self, config: Adaptive, width: int) -> None:
        super().__init__()
        self.config = config
        self.project = Heads(width, config.heads, config.bias)
        self.span = nn.Parameter(torch.full((config.heads,), config.begin))  # as shares of the longest
        self.places = nn.Embedding((1 if config.causal else 2) * config.longest + 1, width // config.heads)
        self.reach = self._rounded(config.begin)

    @property
    def spans(self) -> Tensor:
        """(heads,): how far each looks before sight fades, in positions."""
        return self.span.clamp(0, 1) * self.config.longest

    @property
    def remembers(self) -> int:
        return self.reach

    @property
    def sees(self) -> int:
        return self.reach

    def penalty(self) -> Tensor:
        return self.config.price * self.spans.mean()

    @torch.no_grad()
    def ready(self) -> None:
        """Brings spans that drifted past their ends back, where a slope still reaches them, and trims what is computed."""
        if isinstance(self.span.data, FakeTensor) or self.span.is_meta:
            return  # which `plan` counts: a new model
        least, most = torch.stack(torch.aminmax(self.span.detach())).tolist()
        if self.training and (least < 0 or most > 1):
            self.span.clamp_(0, 1)
        self.reach = self._rounded(min(max(most, 0.0), 1.0))

    def _rounded(self, share: float) -> int:
        """In steps of a ramp: bands of few sizes."""
        ramp, longest = self.config.ramp, self.config.longest
        return min(longest, math.ceil((share * longest + ramp) / ramp) * ramp)

    def forward(self, x: Tensor, layout: Layout, past: Past | None = None) -> Tensor:
        rows = x[None] if past is None else layout.grid(x)
        band, owner, before, before_owner = self._lying(rows, layout, past)
        q, k, v = (part.transpose(1, 2) for part in self.project(rows))  # (rows, heads, length, width of a head)
        old = (None, None) if before is None else [part.transpose(1, 2) for part in self.project.seen(before)]
        q, k, v = band.queries(q), band.keys(k, before=old[0]), band.keys(v, before=old[1])
        scores = q @ k.mT + by_key(q @ self._table(band, x).mT, band.sight)
        seen = band.visible(owner, before_owner)[:, None]
        scores = (scores * q.shape[-1] ** -0.5).float() + self._faded(band.ahead(x.device))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(v.dtype)
        mixed = band.flat(weights @ v).transpose(1, 2)
        return self.project.join(mixed[0] if past is None else layout.flat(mixed))

    def _lying(self, rows: Tensor, layout: Layout, past: Past | None) -> Lying:
        """One long row of all sequences; or, where each goes on from something, a row each."""
        band = Band(rows.shape[1], self.reach, self.config.causal)
        if past is None:
            return Lying(band, layout.owner[None])
        band = replace(band, most=min(band.most, rows.shape[1]))  # of rows as short as one token, too
        latest = past.rows[:, max(0, past.rows.shape[1] - self.reach) :].to(rows.dtype)
        gap = self.reach - latest.shape[1]
        real = F.pad(past.real()[:, past.rows.shape[1] - latest.shape[1] :], (gap, 0))
        owner = torch.where(layout.real(), 0, -2)
        return Lying(band, owner, F.pad(latest, (0, 0, gap, 0)), torch.where(real, 0, -3))

    def _faded(self, ahead: Tensor) -> Tensor:
        """(heads, 1, block, sight): logarithms of the share that counts, for a softmax that renormalises by itself."""
        share = ((self.spans[:, None, None, None] - ahead.abs()) / self.config.ramp + 1).clamp(max=1)
        return share.clamp(min=LEAST).log().masked_fill(share <= 0, float("-inf"))

    def _table(self, band: Band, like: Tensor) -> Tensor:
        """(1 + sight, width of a head): the place of each distance that a block can meet, from the furthest before it."""
        ahead = torch.arange(band.sight + 1, device=like.device) - band.block - band.reach
        longest = self.config.longest
        return self.places(ahead.clamp(-longest, 0 if self.config.causal else longest) + longest).to(like.dtype)
