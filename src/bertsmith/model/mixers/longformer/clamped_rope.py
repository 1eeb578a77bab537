"""Rotary positions and anchors: beyond a window they are met as if they stood at its edge, at a distance that was learnt.

A model that was trained on 512 tokens knows no turn of 4,000: what stands so far away would be met at random.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...positions import shift_rope
from .global_attention import GlobalAttention


@dataclass(frozen=True)
class ClampedRopeGlobalAttention:
    """`Far`, where queries and keys have been turned by their places.

    Queries are turned back, and the keys of anchors to where the edge of the window is for all of them: `reach` behind a
    token, or as much ahead. So those behind are one work for `Far`, and those ahead another.
    """

    global_attention: GlobalAttention
    cos_sin: Tensor  # (places, width of a head)

    def merge(self, qkv: Tensor, out: Tensor, lse: Tensor, scale: float) -> None:
        for far, by in self._clamped_directions:
            far.merge(self._rotate_qkv(qkv, by), out, lse, scale)

    def backward(
        self, grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, local_grads: tuple[Tensor, Tensor, Tensor], scale: float,
        return_bias_grad: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As that of `Far`; nobody knows what the slopes add up to."""
        place, (dq, dk, dv) = self.global_attention.position, local_grads
        dq = shift_rope(dq, self.cos_sin, -place)
        for far, by in self._clamped_directions:
            slope, _ = far.backward(
                grad_out, self._rotate_qkv(qkv, by), out, lse, (dq, self._rotate_global_keys(dk, by), dv), scale
            )
            dq, dk, dv = slope.unbind(1)
            dk = self._rotate_global_keys(dk, -by)
        return torch.stack([shift_rope(dq, self.cos_sin, place), dk, dv], 1), None

    @property
    def _clamped_directions(self) -> list[tuple[GlobalAttention, Tensor]]:
        """With how far the keys of anchors are to be turned."""
        edge, place = (
            self.global_attention.pattern.max_distance,
            self.global_attention.position[self.global_attention.global_tokens],
        )
        return [(far, -place - edge if behind else edge - place) for far, behind in self.global_attention.by_direction]

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
    """Queries and keys of all tokens, and keys of the anchors at the edge behind and ahead, each (.., 2 x width) wide, for who
    can make but one product of them: the first half of a query meets what lies within, the second what lies beyond."""
    by, width = torch.cat([-position[global_tokens] - max_distance, max_distance - position[global_tokens]]), k.shape[-1]
    ends = shift_rope(torch.cat([k[global_tokens], k[global_tokens]]), cos_sin, by)
    return torch.cat([q, shift_rope(q, cos_sin, -position)], -1), F.pad(k, (0, width)), F.pad(ends, (width, 0))


def clamped_scores(
    q: Tensor, k: Tensor, cos_sin: Tensor, query_position: Tensor, key_position: Tensor, max_distance: int
) -> Tensor:
    """(.., heads, anchors, tokens): queries (.., anchors, heads, width) of anchors `at` their places, and keys of tokens at
    theirs, neither of them turned yet; no token is further away than the edge."""
    behind = (query_position[..., :, None] - key_position[..., None, :])[..., None, :, :]
    near = qk_scores(shift_rope(q, cos_sin, query_position), shift_rope(k, cos_sin, key_position))
    after, before = (
        qk_scores(shift_rope(q, cos_sin, torch.full_like(query_position, by)), k) for by in (max_distance, -max_distance)
    )
    return torch.where(behind > max_distance, after, torch.where(behind < -max_distance, before, near))


def qk_scores(q: Tensor, k: Tensor) -> Tensor:
    """(.., heads, anchors, tokens), of queries and keys as they are."""
    return (q * q.shape[-1] ** -0.5).transpose(-3, -2) @ k.transpose(-3, -2).mT
