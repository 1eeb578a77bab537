"""Sliding-window attention with the fastest kernel available.

Returns the log-sum-exp of the scores too, so that other keys can be merged into the same softmax.

This is the one place that calls private attention operators of torch. Their backward pass takes the output and log-sum-exp of
the merged softmax; `varlen_attn` returns the log-sum-exp, but no public function takes a merged one back. On a CPU no public
function returns it without a compiler: matmul and softmax, with 96 blocks of 256 queries and 768 keys of dimension 64 on one
core, take 5.4 times as long forward (1.29 s, not 0.24) and 2.3 times backward (1.87 s, not 0.81).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...packing import Layout
from ..block_band import BlockBand

BLOCKS_PER_CHUNK = 16  # blocks at a time on a CPU: bounds the temporary memory of the backward pass
QKVGrads = tuple[Tensor, Tensor, Tensor]


class LocalAttention(Protocol):
    """Attention within the window. In `backward`, `out` and `lse` may be those of a softmax over more keys than these."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The output, (tokens, heads, head_dim), and the log-sum-exp of the scores, (heads, tokens) in float32."""
        ...

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
    ) -> QKVGrads: ...


@dataclass(frozen=True)
class FlashLocalAttention:
    """On CUDA in half precision: flash attention with its own window, over variable-length sequences."""

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
        args = (q, k, v, *self._varlen_args, 0.0, False, False)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(*args, scale=scale, **self._window_kwargs)
        return out, lse

    def backward(self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> QKVGrads:
        # Not read, as there is no dropout.
        rng_state = self.layout.memoize("rng_state", lambda: torch.zeros(2, dtype=torch.uint64, device=q.device))
        args = (grad_out, q, k, v, out, lse, *self._varlen_args, 0.0, False, rng_state, rng_state)
        grads: QKVGrads = torch.ops.aten._flash_attention_backward(*args, scale=scale, **self._window_kwargs)
        return grads


@dataclass(frozen=True)
class BlockLocalAttention:
    """On a CPU: a chunk of blocks at a time. The keys of blocks are overlapping views, so that none is copied."""

    layout: Layout
    half_window: int
    causal: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        band, outs, lse_chunks = self._band, [], []
        parts = (
            band.to_query_blocks(_heads_first(q)),
            band.to_key_blocks(_heads_first(k)),
            band.to_key_blocks(_heads_first(v)),
            self._attention_bias(q),
        )
        for chunk in zip(*(t.transpose(0, 1).split(BLOCKS_PER_CHUNK) for t in parts), strict=True):
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*chunk[:3], attn_mask=chunk[3], scale=scale)
            outs.append(out)
            lse_chunks.append(lse)
        out, all_lse = (
            band.from_query_blocks(torch.cat(chunks).transpose(0, 1))
            for chunks in (outs, [chunk_lse[..., None] for chunk_lse in lse_chunks])
        )
        return _tokens_first(out).contiguous(), all_lse[..., 0].contiguous()

    def backward(self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> QKVGrads:
        band, dq_chunks = self._band, []
        dk, dv = (
            x.new_zeros(x.shape[1], band.num_blocks + -(-band.keys_per_block // band.block_size), band.block_size, x.shape[2])
            for x in (k, v)
        )
        inputs = (
            band.to_query_blocks(_heads_first(grad_out)),
            band.to_query_blocks(_heads_first(q)),
            band.to_key_blocks(_heads_first(k)),
            band.to_key_blocks(_heads_first(v)),
        )
        outputs = (
            band.to_query_blocks(_heads_first(out)),
            band.to_query_blocks(lse[..., None])[..., 0],
            self._attention_bias(q),
        )
        chunks = zip(*(part.transpose(0, 1).split(BLOCKS_PER_CHUNK) for part in (*inputs, *outputs)), strict=True)
        for i, (*args, mask) in enumerate(chunks):
            dq, *dkv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *args, 0.0, False, attn_mask=mask, scale=scale
            )
            dq_chunks.append(dq)
            for total, part in zip((dk, dv), dkv, strict=True):
                band.add_key_blocks(total, part.transpose(0, 1), i * BLOCKS_PER_CHUNK)
        dq = _tokens_first(band.from_query_blocks(torch.cat(dq_chunks).transpose(0, 1)))
        dk, dv = (_tokens_first(total.flatten(1, 2)[:, band.half_window :][:, : band.num_tokens]) for total in (dk, dv))
        return dq, dk, dv

    @property
    def _band(self) -> BlockBand:
        return BlockBand(self.layout.seq_id.shape[0], self.half_window, self.causal)

    def _attention_bias(self, like: Tensor) -> Tensor:
        """(1, num_blocks, block_size, keys_per_block): 0 or -inf, added to the scores; computed once for all layers."""

        def compute() -> Tensor:
            mask = self._band.attention_mask(self.layout.seq_id)
            return torch.zeros(mask.shape, dtype=like.dtype).masked_fill_(~mask, float("-inf"))[None]

        bias: Tensor = self.layout.memoize(("attention_bias", self.half_window, self.causal, like.dtype), compute)
        return bias


def _heads_first(x: Tensor) -> Tensor:
    """(tokens, heads, head_dim) <-> (heads, tokens, head_dim)"""
    return x.transpose(0, 1)


_tokens_first = _heads_first
