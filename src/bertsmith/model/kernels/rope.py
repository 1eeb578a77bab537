"""Rotary position embedding (Su et al. 2021) applied in place to the queries and keys of a fused QKV projection."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def apply_rope_inplace(qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int) -> Tensor:
    """qkv: (tokens, 3 * hidden_size), changed in place; cos_sin: (positions, head_dim), cosines, then sines."""
    return _ApplyRope.apply(qkv, cos_sin, positions, num_heads)


class _ApplyRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int) -> Tensor:
        ctx.save_for_backward(cos_sin, positions)
        ctx.num_heads = num_heads
        ctx.mark_dirty(qkv)
        return _rotate(qkv, cos_sin, positions, num_heads, 1.0)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        cos_sin, positions = ctx.saved_tensors
        return _rotate(grad_out.contiguous(), cos_sin, positions, ctx.num_heads, -1.0), None, None, None


def _rotate(qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int, sign: float) -> Tensor:
    """In place in the backward pass too: nothing else reads that gradient."""
    num_tokens, num_pairs = len(qkv), qkv.shape[1] // 3  # pairs of features, in queries and keys together
    if num_tokens:
        block = triton.next_power_of_2(num_pairs)
        _rope_kernel[(num_tokens,)](qkv, cos_sin, positions, sign, num_pairs, HEAD_DIM=num_pairs // num_heads, BLOCK=block)
    return qkv


@triton.jit
def _rope_kernel(qkv, cos_sin, positions, sign, num_pairs, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    mask = pair < num_pairs
    HALF: tl.constexpr = HEAD_DIM // 2
    column = pair % HALF
    offsets = token * (num_pairs * 3) + pair // HALF * HEAD_DIM + column
    angle_ptr = cos_sin + tl.load(positions + token) * HEAD_DIM + column
    cos, sin = tl.load(angle_ptr, mask=mask, other=0.0), tl.load(angle_ptr + HALF, mask=mask, other=0.0) * sign
    a = tl.load(qkv + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(qkv + offsets + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(qkv + offsets, (a * cos - b * sin).to(qkv.dtype.element_ty), mask=mask)
    tl.store(qkv + offsets + HALF, (b * cos + a * sin).to(qkv.dtype.element_ty), mask=mask)
