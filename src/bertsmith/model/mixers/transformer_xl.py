"""Transformer-XL (Dai et al. 2019): attention by distance, over this segment and what is remembered of those before."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import NonNegInt, PosInt, Probability, Variant
from ..packing import Layout
from ..positions import rel_shift, sinusoidal_distances
from ..segment_memory import LayerMemory
from .base import Mixer, QKVProjection


class TransformerXL(Variant, frozen=True, tag="recurrent"):
    """A_ij = q_i.k_j + q_i.R(i - j) + u.k_j + v.R(i - j): R a matrix times waves, u and v learned."""

    heads: Annotated[PosInt, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = True
    remembers: Annotated[NonNegInt, "past positions kept from the segment before, in training"] = 128
    recalls: Annotated[NonNegInt | None, "past positions kept where nothing is learnt; else as many as in training"] = None
    same_length: Annotated[bool, "every token sees as far back as the last of a segment: `remembers` positions"] = False
    clamp: Annotated[PosInt | None, "whatever is further is as far as this"] = None
    shared: Annotated[bool, "u and v are those of the first block; else every block has its own"] = False
    dropout: Annotated[Probability, "on attention weights"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = False

    def build(self, hidden_size: int) -> Mixer:
        return TransformerXLAttention(self, hidden_size)


class TransformerXLAttention(Mixer):
    content: nn.Parameter | None  # (heads, 1, width of a head): u
    distant: nn.Parameter | None  # v

    def __init__(self, config: TransformerXL, hidden_size: int) -> None:
        super().__init__()
        self.config, self.hidden_size = config, hidden_size
        self.project = QKVProjection(hidden_size, config.heads, config.bias)
        self.distance = nn.Linear(hidden_size, hidden_size, bias=False)
        each = hidden_size // config.heads
        self.content, self.distant = (nn.Parameter(torch.zeros(config.heads, 1, each)) for _ in range(2))
        self.tied_to: tuple[TransformerXLAttention, ...] = ()  # of u and v, if another block is; a tuple, so it has them alone

    @property
    def mem_len(self) -> int:
        longer = None if self.training else self.config.recalls
        return self.config.remembers if longer is None else longer

    @property
    def max_past_len(self) -> int | None:
        return self.mem_len if self.config.same_length else None

    def tie_weights(self, first_mixer: Mixer) -> None:
        if self.config.shared and isinstance(first_mixer, TransformerXLAttention):
            self.content = self.distant = None
            self.tied_to = (first_mixer,)

    @property
    def tied_parameters(self) -> list[nn.Parameter]:
        return [weight for owner in self.tied_to for weight in (owner.content, owner.distant) if weight is not None]

    def forward(self, x: Tensor, layout: Layout, past: LayerMemory | None = None) -> Tensor:
        q, k, v = (layout.pad(part) for part in self.project(x))
        if past is not None:
            k, v = (
                torch.cat([old, new], 1)
                for old, new in zip(self.project.project_kv(past.hidden_states.to(x.dtype)), (k, v), strict=True)
            )
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (sequences, heads, length, width of a head)
        scale, keys = q.shape[-1] ** -0.5, k.shape[2]
        u, w = self._content_and_position_bias(q)
        far = rel_shift((q + w) @ self._relative_keys(q, keys).mT, keys) * scale
        far = far.masked_fill(~self._attention_mask(layout, past)[:, None], float("-inf"))
        dropout = self.config.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q + u, k, v, far, dropout_p=dropout)
        return self.project.project_out(layout.unpad(mixed.transpose(1, 2)))

    def _content_and_position_bias(self, like: Tensor) -> tuple[Tensor, Tensor]:
        held = self.tied_to[0] if self.tied_to else self
        assert held.content is not None and held.distant is not None
        return held.content.to(like.dtype), held.distant.to(like.dtype)

    def _relative_keys(self, q: Tensor, num_keys: int) -> Tensor:
        """(heads, 1 + distances, width of a head): from one more than the furthest to the nearest."""
        nearest = 0 if self.config.causal else 1 - q.shape[2]
        apart = torch.arange(nearest, num_keys + 1, device=q.device).flip(0)
        if self.config.clamp is not None:
            apart = apart.clamp(-self.config.clamp, self.config.clamp)
        found = self.distance(sinusoidal_distances(apart, self.hidden_size).to(q.dtype))
        return found.unflatten(-1, (self.project.num_heads, -1)).transpose(0, 1)

    def _attention_mask(self, layout: Layout, past: LayerMemory | None) -> Tensor:
        """(sequences, queries, keys) bool"""
        real = layout.padding_mask()
        queries = real.shape[1]
        seen = real if past is None else torch.cat([past.padding_mask(), real], 1)
        keys = seen.shape[1]
        apart = torch.arange(queries, device=real.device)[:, None] + (keys - queries) - torch.arange(keys, device=real.device)
        furthest = max(self.mem_len, 1) if self.config.same_length else keys
        near = apart < furthest
        return seen[:, None] & (near & (apart >= 0) if self.config.causal else near)
