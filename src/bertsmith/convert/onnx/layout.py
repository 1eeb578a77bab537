"""`GraphLayout`: a padded batch of free batch size and length in a graph, with attention in operators that engines fuse."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from ...model.packing import Layout, PaddedLayout
from ...model.positions import rotate

if TYPE_CHECKING:
    from ...model.position_bias import PositionBias


@dataclass(frozen=True, kw_only=True)
class GraphLayout(PaddedLayout):
    """A padded batch whose sizes are symbols: no branch depends on them."""

    @classmethod
    def from_mask(
        cls, attention_mask: Tensor, token_type_ids: Tensor | None = None, global_segment: int | None = None
    ) -> "GraphLayout":
        """attention_mask: (batch, length) bool. A row of padding alone counts as text, so that no softmax is over nothing.

        global_segment: token type with global attention, besides the first token; None: that one only.
        """
        padded = PaddedLayout.from_mask(attention_mask | ~attention_mask.any(1, keepdim=True))
        global_tokens = None
        if global_segment is not None and token_type_ids is not None:
            is_global = (token_type_ids == global_segment) & padded.attention_mask
            global_tokens = (is_global.flatten() | (padded.position == 0)).nonzero().squeeze(1)
        return cls(
            padded.lengths, padded.cu_seqlens, padded.seq_id, padded.position, padded.max_seqlen,
            explicit_global_tokens=global_tokens, attention_mask=padded.attention_mask,
        )  # fmt: skip

    @property
    def first_token(self) -> Tensor:
        return self.cu_seqlens[:-1].long()

    def is_at_most(self, length: int) -> bool:
        """Whether all batches are at most so long, by the largest length that the graph takes."""
        return guard_or_false(self.max_seqlen <= length)

    def memoize(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Once per graph."""
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    def attend_qkv(
        self, qkv: Tensor, num_heads: int, cos_sin: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        position_bias: "PositionBias | None" = None,
    ) -> Tensor:  # fmt: skip
        if position_bias is not None:
            return super().attend_qkv(qkv, num_heads, cos_sin, causal, dropout, position_bias)
        q, k, v = (self.pad(part).unflatten(-1, (num_heads, -1)) for part in qkv.chunk(3, -1))
        if cos_sin is not None:
            q, k = self._apply_rope(q, cos_sin), self._apply_rope(k, cos_sin)
        return self.unpad(self._attend_padded(q, k, v, self._additive_mask(self, causal, qkv.dtype))).flatten(-2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0, keys: Layout | None = None
    ) -> Tensor:
        key_layout = self if keys is None else keys
        mask = self._additive_mask(key_layout, causal, q.dtype)
        return self.unpad(self._attend_padded(self.pad(q), key_layout.pad(k), key_layout.pad(v), mask))

    def _attend_padded(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(head_dim) + mask) v of (batch, length, heads, head_dim)."""
        q, v = (q * q.shape[-1] ** -0.5).transpose(1, 2), v.transpose(1, 2)
        scores = q @ k.permute(0, 2, 3, 1) + mask
        return (scores.softmax(-1) @ v).transpose(1, 2)

    def _apply_rope(self, x: Tensor, cos_sin: Tensor) -> Tensor:
        """RoPE of (batch, length, heads, head_dim): positions are those of the columns, so no table is gathered by token."""
        cos, sin = self.memoize(("cos_sin", id(cos_sin)), lambda: cos_sin[: self.max_seqlen, None].chunk(2, -1))
        return rotate(x, cos, sin)

    def _additive_mask(self, key_layout: Layout, causal: bool, dtype: torch.dtype) -> Tensor:
        """(batch, 1, 1 or queries, keys): 0 where a query may attend to a key, else the lowest number."""

        def compute() -> Tensor:
            mask = key_layout.padding_mask()[:, None, None]
            if causal:
                position = torch.arange(self.max_seqlen, device=mask.device)
                mask = mask & (position <= position[:, None])
            return torch.zeros((), dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)

        return self.memoize(("additive_mask", key_layout is self, causal), compute)
