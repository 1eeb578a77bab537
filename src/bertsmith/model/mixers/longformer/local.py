"""Attention within reach by the fastest kernel there is, with what it takes to join other keys to the same softmax."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...packing import Layout
from ..block_band import BlockBand

BLOCKS_PER_CHUNK = 16  # blocks at a time on a CPU: what is computed on the way back is as large as the piece, not as the text
QKVGrads = tuple[Tensor, Tensor, Tensor]


class LocalAttention(Protocol):
    """Tokens over those near them; `out` on the way back may be of more keys than these, if `sums` is so too."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """(tokens, heads, width) and, in float32, (heads, tokens): logarithms of what the weights were divided by."""
        ...

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
    ) -> QKVGrads: ...


@dataclass(frozen=True)
class FlashLocalAttention:
    """On CUDA in half precision: flash attention reads the blocks of the band alone, and stops at the borders."""

    layout: Layout
    half_window: int
    causal: bool

    @property
    def _window_kwargs(self) -> dict[str, int]:
        return {"window_size_left": self.half_window, "window_size_right": 0 if self.causal else self.half_window}

    @property
    def _varlen_args(self) -> tuple[Tensor, Tensor, int, int]:
        return self.layout.cu_seqlens, self.layout.cu_seqlens, self.layout.max_seqlen, self.layout.max_seqlen

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        given = (q, k, v, *self._varlen_args, 0.0, False, False)
        out, sums, *_ = torch.ops.aten._flash_attention_forward(*given, scale=scale, **self._window_kwargs)
        return out, sums

    def backward(self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> QKVGrads:
        dice = self.layout.memoize("dice", lambda: torch.zeros(2, dtype=torch.uint64, device=q.device))  # never thrown
        given = (grad_out, q, k, v, out, lse, *self._varlen_args, 0.0, False, dice, dice)
        down: QKVGrads = torch.ops.aten._flash_attention_backward(*given, scale=scale, **self._window_kwargs)
        return down


@dataclass(frozen=True)
class BlockLocalAttention:
    """On a CPU: a piece of the band at a time. Keys are views of one another, so that none is copied."""

    layout: Layout
    half_window: int
    causal: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        band, outs, sums = self._band, [], []
        parts = (
            band.to_query_blocks(_heads_first(q)),
            band.to_key_blocks(_heads_first(k)),
            band.to_key_blocks(_heads_first(v)),
            self._attention_bias(q),
        )
        for some in zip(*(part.transpose(0, 1).split(BLOCKS_PER_CHUNK) for part in parts), strict=True):
            out, sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*some[:3], attn_mask=some[3], scale=scale)
            outs.append(out)
            sums.append(sum)
        out, total = (
            band.from_query_blocks(torch.cat(some).transpose(0, 1)) for some in (outs, [one[..., None] for one in sums])
        )
        return _tokens_first(out).contiguous(), total[..., 0].contiguous()

    def backward(self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> QKVGrads:
        band, downs = self._band, []
        dk, dv = (
            x.new_zeros(x.shape[1], band.num_blocks + -(-band.keys_per_block // band.block_size), band.block_size, x.shape[2])
            for x in (k, v)
        )
        near = (
            band.to_query_blocks(_heads_first(grad_out)),
            band.to_query_blocks(_heads_first(q)),
            band.to_key_blocks(_heads_first(k)),
            band.to_key_blocks(_heads_first(v)),
        )
        made = (band.to_query_blocks(_heads_first(out)), band.to_query_blocks(lse[..., None])[..., 0], self._attention_bias(q))
        pieces = zip(*(part.transpose(0, 1).split(BLOCKS_PER_CHUNK) for part in (*near, *made)), strict=True)
        for number, (*some, hidden) in enumerate(pieces):
            dq, *others = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *some, 0.0, False, attn_mask=hidden, scale=scale
            )
            downs.append(dq)
            for whole, part in zip((dk, dv), others, strict=True):
                band.add_key_blocks(whole, part.transpose(0, 1), number * BLOCKS_PER_CHUNK)
        dq = _tokens_first(band.from_query_blocks(torch.cat(downs).transpose(0, 1)))
        dk, dv = (_tokens_first(whole.flatten(1, 2)[:, band.half_window :][:, : band.num_tokens]) for whole in (dk, dv))
        return dq, dk, dv

    @property
    def _band(self) -> BlockBand:
        return BlockBand(self.layout.seq_id.shape[0], self.half_window, self.causal)

    def _attention_bias(self, like: Tensor) -> Tensor:
        """(1, blocks, block, sight): added to the scores; made once for all layers."""

        def find() -> Tensor:
            seen = self._band.attention_mask(self.layout.seq_id)
            return torch.zeros(seen.shape, dtype=like.dtype).masked_fill_(~seen, float("-inf"))[None]

        made: Tensor = self.layout.memoize(("hidden", self.half_window, self.causal, like.dtype), find)
        return made


def _heads_first(x: Tensor) -> Tensor:
    """(tokens, heads, width) -> (heads, tokens, width)"""
    return x.transpose(0, 1)


_tokens_first = _heads_first
