"""Turn queries and keys by their places, where they lie in one product of three."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def apply_rope_inplace(qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int) -> Tensor:
    """(tokens, 3 x width), queries and keys turned in place; `turns` is (places, width of a head), cosines before sines."""
    return _ApplyRope.apply(qkv, cos_sin, positions, num_heads)


class _ApplyRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int) -> Tensor:
        ctx.save_for_backward(cos_sin, positions)
        ctx.heads = num_heads
        ctx.mark_dirty(qkv)
        return _rotate(qkv, cos_sin, positions, num_heads, 1.0)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        turns, places = ctx.saved_tensors
        return _rotate(grad_out.contiguous(), turns, places, ctx.heads, -1.0), None, None, None


def _rotate(qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int, sign: float) -> Tensor:
    """In place on the way back too: the gradient of a product is nobody else's."""
    tokens, pairs = len(qkv), qkv.shape[1] // 3  # of numbers, in queries and keys together
    if tokens:
        block = triton.next_power_of_2(pairs)
        _rope_kernel[(tokens,)](qkv, cos_sin, positions, sign, pairs, WIDTH=pairs // num_heads, BLOCK=block)
    return qkv


@triton.jit
def _rope_kernel(qkv, cos_sin, positions, sign, num_pairs, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    real = pair < num_pairs
    HALF: tl.constexpr = WIDTH // 2
    column = pair % HALF
    at = token * (num_pairs * 3) + pair // HALF * WIDTH + column
    turn = cos_sin + tl.load(positions + token) * WIDTH + column
    cosine, sine = tl.load(turn, mask=real, other=0.0), tl.load(turn + HALF, mask=real, other=0.0) * sign
    a = tl.load(qkv + at, mask=real, other=0.0).to(tl.float32)
    b = tl.load(qkv + at + HALF, mask=real, other=0.0).to(tl.float32)
    tl.store(qkv + at, (a * cosine - b * sine).to(qkv.dtype.element_ty), mask=real)
    tl.store(qkv + at + HALF, (b * cosine + a * sine).to(qkv.dtype.element_ty), mask=real)
