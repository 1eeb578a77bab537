"""GELU of a product and its bias, and GELU as the gate of a second product: one pass there, one pass back."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE, TALL, TURNS = 512, 4, 16  # columns and rows of a tile, and tiles one below another that a program works through


def bias_gelu(x: Tensor, bias: Tensor, tanh_approx: bool) -> Tensor:
    """gelu(x + bias)"""
    return _BiasGelu.apply(x, bias, tanh_approx)


def geglu(x: Tensor, tanh_approx: bool) -> Tensor:
    """gelu of the first half of each row, times the second half."""
    return _GeGlu.apply(x, tanh_approx)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh_approx: bool) -> Tensor:
        x, out = x.contiguous(), torch.empty_like(x)
        _bias_gelu_forward[_launch_grid(*x.shape)](x, bias, out, *x.shape, TANH=tanh_approx, WIDE=WIDE, TALL=TALL, TURNS=TURNS)
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh_approx
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, bias = ctx.saved_tensors
        down, tiles = torch.empty_like(x), _launch_grid(*x.shape)
        sums = torch.empty(tiles[0], x.shape[1], device=x.device, dtype=torch.float32)
        _bias_gelu_backward[tiles](
            grad_out.contiguous(), x, bias, down, sums, *x.shape, TANH=ctx.tanh, WIDE=WIDE, TALL=TALL, TURNS=TURNS
        )
        return down, sums.sum(0).to(bias.dtype), None


class _GeGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tanh_approx: bool) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x), x.shape[1] // 2)
        _geglu_forward[_launch_grid(*out.shape)](x, out, *out.shape, TANH=tanh_approx, WIDE=WIDE, TALL=TALL, TURNS=TURNS)
        ctx.save_for_backward(x)
        ctx.tanh = tanh_approx
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        down = torch.empty_like(x)
        _geglu_backward[_launch_grid(*grad_out.shape)](
            grad_out.contiguous(), x, down, *grad_out.shape, TANH=ctx.tanh, WIDE=WIDE, TALL=TALL, TURNS=TURNS
        )
        return down, None


def _launch_grid(num_rows: int, num_cols: int) -> tuple[int, int]:
    return max(1, triton.cdiv(num_rows, TALL * TURNS)), triton.cdiv(num_cols, WIDE)


@triton.jit
def _gelu_cdf(x, TANH: tl.constexpr):
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
def _bias_gelu_forward(
    x, bias, out, num_rows, num_cols, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, TURNS: tl.constexpr
):
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    num_rows -= above
    x, out = x + above * num_cols, out + above * num_cols
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    shift = tl.load(bias + columns, mask=columns < num_cols, other=0.0).to(tl.float32)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        at = row[:, None] * num_cols + columns[None, :]
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32) + shift[None, :]
        share, _ = _gelu_cdf(value, TANH)
        tl.store(out + at, (value * share).to(out.dtype.element_ty), mask=real)


@triton.jit
def _bias_gelu_backward(grad_out, x, bias, grad_input, partial_grad_bias, num_rows, num_cols, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
                     TURNS: tl.constexpr):  # fmt: skip
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    num_rows -= above
    grad_out, x, grad_input = grad_out + above * num_cols, x + above * num_cols, grad_input + above * num_cols
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    shift = tl.load(bias + columns, mask=columns < num_cols, other=0.0).to(tl.float32)
    total = tl.zeros((TALL, WIDE), tl.float32)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        at = row[:, None] * num_cols + columns[None, :]
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32) + shift[None, :]
        share, slope = _gelu_cdf(value, TANH)
        grad = tl.load(grad_out + at, mask=real, other=0.0).to(tl.float32) * (share + value * slope)
        tl.store(grad_input + at, grad.to(grad_input.dtype.element_ty), mask=real)
        total += grad
    tl.store(partial_grad_bias + tl.program_id(0) * num_cols + columns, tl.sum(total, 0), mask=columns < num_cols)


@triton.jit
def _geglu_forward(x, out, num_rows, num_cols, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, TURNS: tl.constexpr):
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    num_rows -= above
    out, x = out + above * num_cols, x + above * (2 * num_cols)  # whose rows are twice as wide
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        at, pair = row[:, None] * num_cols + columns[None, :], row[:, None] * (2 * num_cols) + columns[None, :]
        gate = tl.load(x + pair, mask=real, other=0.0).to(tl.float32)
        value = tl.load(x + pair + num_cols, mask=real, other=0.0).to(tl.float32)
        share, _ = _gelu_cdf(gate, TANH)
        tl.store(out + at, (gate * share * value).to(out.dtype.element_ty), mask=real)


@triton.jit
def _geglu_backward(
    grad_out, x, grad_input, num_rows, num_cols, TANH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, TURNS: tl.constexpr
):
    above = tl.program_id(0).to(tl.int64) * (TURNS * TALL)
    num_rows -= above
    grad_out, x, grad_input = (
        grad_out + above * num_cols,
        x + above * (2 * num_cols),
        grad_input + above * (2 * num_cols),
    )  # whose rows are twice as wide
    columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    for turn in range(TURNS):
        row = turn * TALL + tl.arange(0, TALL)
        real = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        at, pair = row[:, None] * num_cols + columns[None, :], row[:, None] * (2 * num_cols) + columns[None, :]
        gate = tl.load(x + pair, mask=real, other=0.0).to(tl.float32)
        value = tl.load(x + pair + num_cols, mask=real, other=0.0).to(tl.float32)
        grad = tl.load(grad_out + at, mask=real, other=0.0).to(tl.float32)
        share, slope = _gelu_cdf(gate, TANH)
        tl.store(grad_input + pair, (grad * value * (share + gate * slope)).to(grad_input.dtype.element_ty), mask=real)
        tl.store(grad_input + pair + num_cols, (grad * gate * share).to(grad_input.dtype.element_ty), mask=real)
