"""Attention within reach by the fastest kernel there is, with what it takes to join other keys to the same softmax."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...packing import Layout
from ..block_band import Band

PIECE = 16  # blocks at a time on a CPU: what is computed on the way back is as large as the piece, not as the text
Three = tuple[Tensor, Tensor, Tensor]


class Near(Protocol):
    """Tokens over those near them; `out` on the way back may be of more keys than these, if `sums` is so too."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """(tokens, heads, width) and, in float32, (heads, tokens): logarithms of what the weights were divided by."""
        ...

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, scale: float) -> Three: ...


@dataclass(frozen=True)
class Flash:
    """On CUDA in half precision: flash attention reads the blocks of the band alone, and stops at the borders."""

    layout: Layout
    reach: int
    causal: bool

    @property
    def _window(self) -> dict[str, int]:
        return {"window_size_left": self.reach, "window_size_right": 0 if self.causal else self.reach}

    @property
    def _borders(self) -> tuple[Tensor, Tensor, int, int]:
        return self.layout.starts, self.layout.starts, self.layout.longest, self.layout.longest

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        given = (q, k, v, *self._borders, 0.0, False, False)
        out, sums, *_ = torch.ops.aten._flash_attention_forward(*given, scale=scale, **self._window)
        return out, sums

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, scale: float) -> Three:
        dice = self.layout.once("dice", lambda: torch.zeros(2, dtype=torch.uint64, device=q.device))  # never thrown
        given = (grad, q, k, v, out, sums, *self._borders, 0.0, False, dice, dice)
        down: Three = torch.ops.aten._flash_attention_backward(*given, scale=scale, **self._window)
        return down


@dataclass(frozen=True)
class Blocks:
    """On a CPU: a piece of the band at a time. Keys are views of one another, so that none is copied."""

    layout: Layout
    reach: int
    causal: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        band, outs, sums = self._band, [], []
        parts = (band.queries(_first(q)), band.keys(_first(k)), band.keys(_first(v)), self._hidden(q))
        for some in zip(*(part.transpose(0, 1).split(PIECE) for part in parts), strict=True):
            out, sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*some[:3], attn_mask=some[3], scale=scale)
            outs.append(out)
            sums.append(sum)
        out, total = (band.flat(torch.cat(some).transpose(0, 1)) for some in (outs, [one[..., None] for one in sums]))
        return _last(out).contiguous(), total[..., 0].contiguous()

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, scale: float) -> Three:
        band, downs = self._band, []
        dk, dv = (x.new_zeros(x.shape[1], band.blocks + -(-band.sight // band.block), band.block, x.shape[2]) for x in (k, v))
        near = (band.queries(_first(grad)), band.queries(_first(q)), band.keys(_first(k)), band.keys(_first(v)))
        made = (band.queries(_first(out)), band.queries(sums[..., None])[..., 0], self._hidden(q))
        pieces = zip(*(part.transpose(0, 1).split(PIECE) for part in (*near, *made)), strict=True)
        for number, (*some, hidden) in enumerate(pieces):
            dq, *others = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *some, 0.0, False, attn_mask=hidden, scale=scale
            )
            downs.append(dq)
            for whole, part in zip((dk, dv), others, strict=True):
                band.add(whole, part.transpose(0, 1), number * PIECE)
        dq = _last(band.flat(torch.cat(downs).transpose(0, 1)))
        dk, dv = (_last(whole.flatten(1, 2)[:, band.reach :][:, : band.tokens]) for whole in (dk, dv))
        return dq, dk, dv

    @property
    def _band(self) -> Band:
        return Band(self.layout.owner.shape[0], self.reach, self.causal)

    def _hidden(self, like: Tensor) -> Tensor:
        """(1, blocks, block, sight): added to the scores; made once for all layers."""

        def find() -> Tensor:
            seen = self._band.visible(self.layout.owner)
            return torch.zeros(seen.shape, dtype=like.dtype).masked_fill_(~seen, float("-inf"))[None]

        made: Tensor = self.layout.once(("hidden", self.reach, self.causal, like.dtype), find)
        return made


def _first(x: Tensor) -> Tensor:
    """(tokens, heads, width) -> (heads, tokens, width)"""
    return x.transpose(0, 1)


_last = _first
