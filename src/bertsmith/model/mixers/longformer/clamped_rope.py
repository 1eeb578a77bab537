"""Rotary positions and anchors: beyond a window they are met as if they stood at its edge, at a distance that was learnt.

A model that was trained on 512 tokens knows no turn of 4,000: what stands so far away would be met at random.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...positions import spun
from .global_attention import Far


@dataclass(frozen=True)
class Edge:
    """`Far`, where queries and keys have been turned by their places.

    Queries are turned back, and the keys of anchors to where the edge of the window is for all of them: `reach` behind a
    token, or as much ahead. So those behind are one work for `Far`, and those ahead another.
    """

    far: Far
    turns: Tensor  # (places, width of a head)

    def join(self, qkv: Tensor, out: Tensor, sums: Tensor, scale: float) -> None:
        for far, by in self._sides:
            far.join(self._met(qkv, by), out, sums, scale)

    def back(
        self, grad: Tensor, qkv: Tensor, out: Tensor, sums: Tensor, down: tuple[Tensor, Tensor, Tensor], scale: float,
        total: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As that of `Far`; nobody knows what the slopes add up to."""
        place, (dq, dk, dv) = self.far.place, down
        dq = spun(dq, self.turns, -place)
        for far, by in self._sides:
            slope, _ = far.back(grad, self._met(qkv, by), out, sums, (dq, self._moved(dk, by), dv), scale)
            dq, dk, dv = slope.unbind(1)
            dk = self._moved(dk, -by)
        return torch.stack([spun(dq, self.turns, place), dk, dv], 1), None

    @property
    def _sides(self) -> list[tuple[Far, Tensor]]:
        """With how far the keys of anchors are to be turned."""
        edge, place = self.far.sight.edge, self.far.place[self.far.anchors]
        return [(far, -place - edge if behind else edge - place) for far, behind in self.far.sides]

    def _met(self, qkv: Tensor, by: Tensor) -> Tensor:
        q, k, v = qkv.unbind(1)
        return torch.stack([spun(q, self.turns, -self.far.place), self._moved(k, by), v], 1)

    def _moved(self, keys: Tensor, by: Tensor) -> Tensor:
        return keys.index_copy(0, self.far.anchors, spun(keys[self.far.anchors], self.turns, by))


def doubled(q: Tensor, k: Tensor, turns: Tensor, anchors: Tensor, place: Tensor, edge: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of all tokens, and keys of the anchors at the edge behind and ahead, each (.., 2 x width) wide, for who
    can make but one product of them: the first half of a query meets what lies within, the second what lies beyond."""
    by, width = torch.cat([-place[anchors] - edge, edge - place[anchors]]), k.shape[-1]
    ends = spun(torch.cat([k[anchors], k[anchors]]), turns, by)
    return torch.cat([q, spun(q, turns, -place)], -1), F.pad(k, (0, width)), F.pad(ends, (width, 0))


def scores(q: Tensor, k: Tensor, turns: Tensor, at: Tensor, place: Tensor, edge: int) -> Tensor:
    """(.., heads, anchors, tokens): queries (.., anchors, heads, width) of anchors `at` their places, and keys of tokens at
    theirs, neither of them turned yet; no token is further away than the edge."""
    behind = (at[..., :, None] - place[..., None, :])[..., None, :, :]
    near = products(spun(q, turns, at), spun(k, turns, place))
    after, before = (products(spun(q, turns, torch.full_like(at, by)), k) for by in (edge, -edge))
    return torch.where(behind > edge, after, torch.where(behind < -edge, before, near))


def products(q: Tensor, k: Tensor) -> Tensor:
    """(.., heads, anchors, tokens), of queries and keys as they are."""
    return (q * q.shape[-1] ** -0.5).transpose(-3, -2) @ k.transpose(-3, -2).mT
