"""GELU of a product and its bias, and GELU as the gate of a second product: one pass there, one pass back."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE, TALL, TURNS = 512, 4, 16  # columns and rows of a tile, and tiles one below another that a program works through


def biased(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """gelu(x + bias)"""
    return _Biased.apply(x, bias, tanh)


def gated(x: Tensor, tanh: bool) -> Tensor:
    """gelu of the first half of each row, times the second half."""
    return _Gated.apply(x, tanh)


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        x, out = x.contiguous(), torch.empty_like(x)
        _biased_forward[_tiles(*x.shape)](x, bias, out, *x.shape, TANH=tanh, WIDE=WIDE, TALL=TALL, TURNS=TURNS)
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh
        return out

    @staticmethod
    def backward(ctx: Any, out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, bias = ctx.saved_tensors
        down, tiles = torch.empty_like(x), _tiles(*x.shape)
        sums = torch.empty(tiles[0], x.shape[1], device=x.device, dtype=torch.float32)
        _biased_backward[tiles](
            out.contiguous(), x, bias, down, sums, *x.shape, TANH=ctx.tanh, WIDE=WIDE, TALL=TALL, TURNS=TURNS
        )
        return down, sums.sum(0).to(bias.dtype), None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tanh: bool) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x), x.shape[1] // 2)
        _gated_forward[_tiles(*out.shape)](x, out, *out.shape, TANH=tanh, WIDE=WIDE, TALL=TALL, TURNS=TURNS)
        ctx.save_for_backward(x)
        ctx.tanh = tanh
        return out

    @staticmethod
    def backward(ctx: Any, out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        down = torch.empty_like(x)
        _gated_backward[_tiles(*out.shape)](
            out.contiguous(), x, down, *out.shape, TANH=ctx.tanh, WIDE=WIDE, TALL=TALL, TURNS=TURNS
        )
        return down, None


def _tiles(rows: int, width: int) -> tuple[int, int]:
    return max(1, triton.cdiv(rows, TALL * TURNS)), triton.cdiv(width, WIDE)


@triton.jit
def _share(x, TANH: tl.constexpr):
    """How much of x GELU lets through, and how that grows with x: gelu(x) = x * share."""
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        share = 1 / (1 + tl.exp(-2 * inner))
        slope = 2 * share * (1 - share) * 0.7978845608028654 * (1 + 0.134145 * x * x)
    else:
        # erf by Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most: a third of the work, and it shares its exponential
        bell = tl.exp(-0.5 * x * x)
        t = 1 / (1 + 0.2316418882 * tl.abs(x))
        tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * bell
        share = tl.where(x < 0, tail, 1 - tail)
        slope = 0.3989422804014327 * bell
    return share, slope


@triton.jit
def _biased_forward(x, bias, out, rows, width, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, TURNS: tl.constexpr):
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    rows -= above
    x, out = x + above * width, out + above * width
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    shift = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < rows)[:, None] & (columns < width)[None, :]
        at = row[:, None] * width + columns[None, :]
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32) + shift[None, :]
        share, _ = _share(value, TANH)
        tl.store(out + at, (value * share).to(out.dtype.element_ty), mask=real)


@triton.jit
def _biased_backward(out, x, bias, down, sums, rows, width, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
                     TURNS: tl.constexpr):  # fmt: skip
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    rows -= above
    out, x, down = out + above * width, x + above * width, down + above * width
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    shift = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    total = tl.zeros((TALL, WIDE), tl.float32)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < rows)[:, None] & (columns < width)[None, :]
        at = row[:, None] * width + columns[None, :]
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32) + shift[None, :]
        share, slope = _share(value, TANH)
        grad = tl.load(out + at, mask=real, other=0.0).to(tl.float32) * (share + value * slope)
        tl.store(down + at, grad.to(down.dtype.element_ty), mask=real)
        total += grad
    tl.store(sums + tl.program_id(0) * width + columns, tl.sum(total, 0), mask=columns < width)


@triton.jit
def _gated_forward(x, out, rows, width, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, TURNS: tl.constexpr):
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    rows -= above
    out, x = out + above * width, x + above * (2 * width)  # whose rows are twice as wide
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < rows)[:, None] & (columns < width)[None, :]
        at, pair = row[:, None] * width + columns[None, :], row[:, None] * (2 * width) + columns[None, :]
        gate = tl.load(x + pair, mask=real, other=0.0).to(tl.float32)
        value = tl.load(x + pair + width, mask=real, other=0.0).to(tl.float32)
        share, _ = _share(gate, TANH)
        tl.store(out + at, (gate * share * value).to(out.dtype.element_ty), mask=real)


@triton.jit
def _gated_backward(out, x, down, rows, width, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, TURNS: tl.constexpr):
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    rows -= above
    out, x, down = out + above * width, x + above * (2 * width), down + above * (2 * width)  # whose rows are twice as wide
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < rows)[:, None] & (columns < width)[None, :]
        at, pair = row[:, None] * width + columns[None, :], row[:, None] * (2 * width) + columns[None, :]
        gate = tl.load(x + pair, mask=real, other=0.0).to(tl.float32)
        value = tl.load(x + pair + width, mask=real, other=0.0).to(tl.float32)
        grad = tl.load(out + at, mask=real, other=0.0).to(tl.float32)
        share, slope = _share(gate, TANH)
        tl.store(down + pair, (grad * value * (share + gate * slope)).to(down.dtype.element_ty), mask=real)
        tl.store(down + pair + width, (grad * gate * share).to(down.dtype.element_ty), mask=real)
