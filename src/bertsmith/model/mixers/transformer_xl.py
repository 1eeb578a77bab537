"""Transformer-XL (Dai et al. 2019): attention by distance, over this segment and what is remembered of those before."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import Chance, Count, Variant, Whole
from ..packing import Layout
from ..positions import by_key, waves
from ..segment_memory import Past
from .base import Heads, Mixer


class Recurrent(Variant, frozen=True):
    """A_ij = q_i.k_j + q_i.R(i - j) + u.k_j + v.R(i - j): R a matrix times waves, u and v learned."""

    heads: Annotated[Count, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = True
    remembers: Annotated[Whole, "past positions kept from the segment before, in training"] = 128
    recalls: Annotated[Whole | None, "past positions kept where nothing is learnt; else as many as in training"] = None
    same_length: Annotated[bool, "every token sees as far back as the last of a segment: `remembers` positions"] = False
    clamp: Annotated[Count | None, "whatever is further is as far as this"] = None
    shared: Annotated[bool, "u and v are those of the first block; else every block has its own"] = False
    dropout: Annotated[Chance, "on attention weights"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = False

    def build(self, width: int) -> Mixer:
        return RecurrentAttention(self, width)


class RecurrentAttention(Mixer):
    content: nn.Parameter | None  # (heads, 1, width of a head): u
    distant: nn.Parameter | None  # v

    def __init__(self, config: Recurrent, width: int) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.project = Heads(width, config.heads, config.bias)
        self.distance = nn.Linear(width, width, bias=False)
        each = width // config.heads
        self.content, self.distant = (nn.Parameter(torch.zeros(config.heads, 1, each)) for _ in range(2))
        self.owner: tuple[RecurrentAttention, ...] = ()  # of u and v, if another block is; a tuple, so it has them alone

    @property
    def remembers(self) -> int:
        longer = None if self.training else self.config.recalls
        return self.config.remembers if longer is None else longer

    @property
    def sees(self) -> int | None:
        return self.remembers if self.config.same_length else None

    def share(self, first: Mixer) -> None:
        if self.config.shared and isinstance(first, RecurrentAttention):
            self.content = self.distant = None
            self.owner = (first,)

    @property
    def borrowed(self) -> list[nn.Parameter]:
        return [weight for owner in self.owner for weight in (owner.content, owner.distant) if weight is not None]

    def forward(self, x: Tensor, layout: Layout, past: Past | None = None) -> Tensor:
        q, k, v = (layout.grid(part) for part in self.project(x))
        if past is not None:
            k, v = (torch.cat([old, new], 1) for old, new in zip(self.project.seen(past.rows.to(x.dtype)), (k, v), strict=True))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (sequences, heads, length, width of a head)
        scale, keys = q.shape[-1] ** -0.5, k.shape[2]
        u, w = self._biases(q)
        far = by_key((q + w) @ self._distances(q, keys).mT, keys) * scale
        far = far.masked_fill(~self._visible(layout, past)[:, None], float("-inf"))
        dropout = self.config.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q + u, k, v, far, dropout_p=dropout)
        return self.project.join(layout.flat(mixed.transpose(1, 2)))

    def _biases(self, like: Tensor) -> tuple[Tensor, Tensor]:
        held = self.owner[0] if self.owner else self
        assert held.content is not None and held.distant is not None
        return held.content.to(like.dtype), held.distant.to(like.dtype)

    def _distances(self, q: Tensor, keys: int) -> Tensor:
        """(heads, 1 + distances, width of a head): from one more than the furthest to the nearest."""
        nearest = 0 if self.config.causal else 1 - q.shape[2]
        apart = torch.arange(nearest, keys + 1, device=q.device).flip(0)
        if self.config.clamp is not None:
            apart = apart.clamp(-self.config.clamp, self.config.clamp)
        found = self.distance(waves(apart, self.width).to(q.dtype))
        return found.unflatten(-1, (self.project.heads, -1)).transpose(0, 1)

    def _visible(self, layout: Layout, past: Past | None) -> Tensor:
        """(sequences, queries, keys) bool"""
        real = layout.real()
        queries = real.shape[1]
        seen = real if past is None else torch.cat([past.real(), real], 1)
        keys = seen.shape[1]
        apart = torch.arange(queries, device=real.device)[:, None] + (keys - queries) - torch.arange(keys, device=real.device)
        furthest = max(self.remembers, 1) if self.config.same_length else keys
        near = apart < furthest
        return seen[:, None] & (near & (apart >= 0) if self.config.causal else near)
