"""RoPE for global tokens: outside the window their relative position is clamped to the window's edge.

Training on 512 tokens includes no rotation by 4,000 positions; without clamping, scores at such distances
would be arbitrary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...positions import shift_rope
from .global_attention import GlobalAttention


@dataclass(frozen=True)
class ClampedRopeGlobalAttention:
    """`GlobalAttention` for queries and keys that RoPE has been applied to.

    The rotation of the queries is undone, and the keys of global tokens are rotated to a fixed relative position:
    `max_distance` behind the query, or as far ahead. Global tokens behind and those ahead are two calls of `GlobalAttention`.
    """

    global_attention: GlobalAttention
    cos_sin: Tensor  # (positions, head_dim): cosines, then sines

    def merge(self, qkv: Tensor, out: Tensor, lse: Tensor, scale: float) -> None:
        for global_attention, offset in self._clamped_directions:
            global_attention.merge(self._rotate_qkv(qkv, offset), out, lse, scale)

    def backward(
        self, grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, local_grads: tuple[Tensor, Tensor, Tensor], scale: float,
        return_bias_grad: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As `GlobalAttention.backward`, without the gradient of the bias."""
        position, (dq, dk, dv) = self.global_attention.position, local_grads
        dq = shift_rope(dq, self.cos_sin, -position)
        for global_attention, offset in self._clamped_directions:
            grad_qkv, _ = global_attention.backward(
                grad_out, self._rotate_qkv(qkv, offset), out, lse, (dq, self._rotate_global_keys(dk, offset), dv), scale
            )
            dq, dk, dv = grad_qkv.unbind(1)
            dk = self._rotate_global_keys(dk, -offset)
        return torch.stack([shift_rope(dq, self.cos_sin, position), dk, dv], 1), None

    @property
    def _clamped_directions(self) -> list[tuple[GlobalAttention, Tensor]]:
        """The attention of each direction, and by how many positions its global keys are rotated."""
        max_distance, position = (
            self.global_attention.pattern.max_distance,
            self.global_attention.position[self.global_attention.global_tokens],
        )
        return [
            (global_attention, -position - max_distance if is_behind else max_distance - position)
            for global_attention, is_behind in self.global_attention.by_direction
        ]

    def _rotate_qkv(self, qkv: Tensor, offset: Tensor) -> Tensor:
        q, k, v = qkv.unbind(1)
        return torch.stack(
            [shift_rope(q, self.cos_sin, -self.global_attention.position), self._rotate_global_keys(k, offset), v], 1
        )

    def _rotate_global_keys(self, keys: Tensor, offset: Tensor) -> Tensor:
        return keys.index_copy(
            0, self.global_attention.global_tokens, shift_rope(keys[self.global_attention.global_tokens], self.cos_sin, offset)
        )


def build_clamped_qk(
    q: Tensor, k: Tensor, cos_sin: Tensor, global_tokens: Tensor, position: Tensor, max_distance: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys with 2 * head_dim features, so that one dot product serves ordinary and clamped RoPE.

    Returns the queries and keys of all tokens, and the keys of global tokens clamped behind, then ahead of the query. The first
    half of a query's features meets keys in the window, the second half global keys outside it; the rest is zero.
    """
    offsets, head_dim = (
        torch.cat([-position[global_tokens] - max_distance, max_distance - position[global_tokens]]),
        k.shape[-1],
    )
    global_keys = shift_rope(torch.cat([k[global_tokens], k[global_tokens]]), cos_sin, offsets)
    return torch.cat([q, shift_rope(q, cos_sin, -position)], -1), F.pad(k, (0, head_dim)), F.pad(global_keys, (head_dim, 0))


def clamped_scores(
    q: Tensor, k: Tensor, cos_sin: Tensor, query_position: Tensor, key_position: Tensor, max_distance: int
) -> Tensor:
    """(.., heads, global tokens, tokens): scores with relative positions clamped to `max_distance`.

    q: (.., global tokens, heads, head_dim) at `query_position`; k: (.., tokens, heads, head_dim) at `key_position`; neither is
    rotated yet.
    """
    distance = (query_position[..., :, None] - key_position[..., None, :])[..., None, :, :]
    unclamped = qk_scores(shift_rope(q, cos_sin, query_position), shift_rope(k, cos_sin, key_position))
    clamped_behind, clamped_ahead = (
        qk_scores(shift_rope(q, cos_sin, torch.full_like(query_position, offset)), k)
        for offset in (max_distance, -max_distance)
    )
    return torch.where(distance > max_distance, clamped_behind, torch.where(distance < -max_distance, clamped_ahead, unclamped))


def qk_scores(q: Tensor, k: Tensor) -> Tensor:
    """(.., heads, queries, keys): scaled dot products of (.., queries, heads, head_dim) and (.., keys, heads, head_dim)."""
    return (q * q.shape[-1] ** -0.5).transpose(-3, -2) @ k.transpose(-3, -2).mT
