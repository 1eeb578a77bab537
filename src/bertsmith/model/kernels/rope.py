"""Turn queries and keys by their places, where they lie in one product of three."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def turned(qkv: Tensor, turns: Tensor, places: Tensor, heads: int) -> Tensor:
    """(tokens, 3 x width), queries and keys turned in place; `turns` is (places, width of a head), cosines before sines."""
    return _Turned.apply(qkv, turns, places, heads)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, turns: Tensor, places: Tensor, heads: int) -> Tensor:
        ctx.save_for_backward(turns, places)
        ctx.heads = heads
        ctx.mark_dirty(qkv)
        return _turn(qkv, turns, places, heads, 1.0)

    @staticmethod
    def backward(ctx: Any, out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        turns, places = ctx.saved_tensors
        return _turn(out.contiguous(), turns, places, ctx.heads, -1.0), None, None, None


def _turn(qkv: Tensor, turns: Tensor, places: Tensor, heads: int, way: float) -> Tensor:
    """In place on the way back too: the gradient of a product is nobody else's."""
    tokens, pairs = len(qkv), qkv.shape[1] // 3  # of numbers, in queries and keys together
    if tokens:
        block = triton.next_power_of_2(pairs)
        _kernel[(tokens,)](qkv, turns, places, way, pairs, WIDTH=pairs // heads, BLOCK=block)
    return qkv


@triton.jit
def _kernel(qkv, turns, places, way, pairs, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    real = pair < pairs
    HALF: tl.constexpr = WIDTH // 2
    column = pair % HALF
    at = token * (pairs * 3) + pair // HALF * WIDTH + column
    turn = turns + tl.load(places + token) * WIDTH + column
    cosine, sine = tl.load(turn, mask=real, other=0.0), tl.load(turn + HALF, mask=real, other=0.0) * way
    a = tl.load(qkv + at, mask=real, other=0.0).to(tl.float32)
    b = tl.load(qkv + at + HALF, mask=real, other=0.0).to(tl.float32)
    tl.store(qkv + at, (a * cosine - b * sine).to(qkv.dtype.element_ty), mask=real)
    tl.store(qkv + at + HALF, (b * cosine + a * sine).to(qkv.dtype.element_ty), mask=real)
