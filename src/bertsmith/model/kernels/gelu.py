"""Fused bias + GELU (Hendrycks and Gimpel 2016) and GeGLU (Shazeer 2020): one kernel forward, one backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_COLS, BLOCK_ROWS, TILES_PER_PROGRAM = 512, 4, 16  # a program works through several tiles, one below the other


def bias_gelu(x: Tensor, bias: Tensor, tanh_approx: bool) -> Tensor:
    """gelu(x + bias), x (rows, cols), bias (cols,); `tanh_approx` as approximate="tanh" in torch."""
    return _BiasGelu.apply(x, bias, tanh_approx)


def geglu(x: Tensor, tanh_approx: bool) -> Tensor:
    """gelu(gate) * value, for x = [gate, value] (rows, 2 * cols) -> (rows, cols)."""
    return _GeGlu.apply(x, tanh_approx)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh_approx: bool) -> Tensor:
        x, out = x.contiguous(), torch.empty_like(x)
        _bias_gelu_forward[_launch_grid(*x.shape)](
            x,
            bias,
            out,
            *x.shape,
            TANH=tanh_approx,
            BLOCK_COLS=BLOCK_COLS,
            BLOCK_ROWS=BLOCK_ROWS,
            TILES_PER_PROGRAM=TILES_PER_PROGRAM,
        )
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh_approx
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, bias = ctx.saved_tensors
        grad_input, grid = torch.empty_like(x), _launch_grid(*x.shape)
        partial_grad_bias = torch.empty(grid[0], x.shape[1], device=x.device, dtype=torch.float32)
        _bias_gelu_backward[grid](
            grad_out.contiguous(),
            x,
            bias,
            grad_input,
            partial_grad_bias,
            *x.shape,
            TANH=ctx.tanh,
            BLOCK_COLS=BLOCK_COLS,
            BLOCK_ROWS=BLOCK_ROWS,
            TILES_PER_PROGRAM=TILES_PER_PROGRAM,
        )
        return grad_input, partial_grad_bias.sum(0).to(bias.dtype), None


class _GeGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tanh_approx: bool) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x), x.shape[1] // 2)
        _geglu_forward[_launch_grid(*out.shape)](
            x,
            out,
            *out.shape,
            TANH=tanh_approx,
            BLOCK_COLS=BLOCK_COLS,
            BLOCK_ROWS=BLOCK_ROWS,
            TILES_PER_PROGRAM=TILES_PER_PROGRAM,
        )
        ctx.save_for_backward(x)
        ctx.tanh = tanh_approx
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        grad_input = torch.empty_like(x)
        _geglu_backward[_launch_grid(*grad_out.shape)](
            grad_out.contiguous(),
            x,
            grad_input,
            *grad_out.shape,
            TANH=ctx.tanh,
            BLOCK_COLS=BLOCK_COLS,
            BLOCK_ROWS=BLOCK_ROWS,
            TILES_PER_PROGRAM=TILES_PER_PROGRAM,
        )
        return grad_input, None


def _launch_grid(num_rows: int, num_cols: int) -> tuple[int, int]:
    return max(1, triton.cdiv(num_rows, BLOCK_ROWS * TILES_PER_PROGRAM)), triton.cdiv(num_cols, BLOCK_COLS)


@triton.jit
def _gelu_cdf(x, TANH: tl.constexpr):
    """The normal CDF (or its tanh approximation) and its derivative: gelu(x) = x * cdf, gelu'(x) = cdf + x * pdf."""
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        cdf = 1 / (1 + tl.exp(-2 * inner))
        pdf = 2 * cdf * (1 - cdf) * 0.7978845608028654 * (1 + 0.134145 * x * x)
    else:
        # erf by Abramowitz and Stegun 7.1.26, error at most 1.5e-7: a third of the cost, and its exponential is the pdf's
        bell = tl.exp(-0.5 * x * x)
        t = 1 / (1 + 0.2316418882 * tl.abs(x))
        tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * bell
        cdf = tl.where(x < 0, tail, 1 - tail)
        pdf = 0.3989422804014327 * bell
    return cdf, pdf


@triton.jit
def _bias_gelu_forward(
    x,
    bias,
    out,
    num_rows,
    num_cols,
    TANH: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    TILES_PER_PROGRAM: tl.constexpr,
):
    first_row = tl.program_id(0).to(tl.int64) * (TILES_PER_PROGRAM * BLOCK_ROWS)
    num_rows -= first_row
    x, out = x + first_row * num_cols, out + first_row * num_cols
    columns = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    bias_row = tl.load(bias + columns, mask=columns < num_cols, other=0.0).to(tl.float32)
    for tile in range(TILES_PER_PROGRAM):
        row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        mask = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        offsets = row[:, None] * num_cols + columns[None, :]
        value = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) + bias_row[None, :]
        cdf, _ = _gelu_cdf(value, TANH)
        tl.store(out + offsets, (value * cdf).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _bias_gelu_backward(
    grad_out, x, bias, grad_input, partial_grad_bias, num_rows, num_cols, TANH: tl.constexpr, BLOCK_COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, TILES_PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    first_row = tl.program_id(0).to(tl.int64) * (TILES_PER_PROGRAM * BLOCK_ROWS)
    num_rows -= first_row
    grad_out, x, grad_input = grad_out + first_row * num_cols, x + first_row * num_cols, grad_input + first_row * num_cols
    columns = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    bias_row = tl.load(bias + columns, mask=columns < num_cols, other=0.0).to(tl.float32)
    bias_grad = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for tile in range(TILES_PER_PROGRAM):
        row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        mask = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        offsets = row[:, None] * num_cols + columns[None, :]
        value = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) + bias_row[None, :]
        cdf, pdf = _gelu_cdf(value, TANH)
        grad = tl.load(grad_out + offsets, mask=mask, other=0.0).to(tl.float32) * (cdf + value * pdf)
        tl.store(grad_input + offsets, grad.to(grad_input.dtype.element_ty), mask=mask)
        bias_grad += grad
    tl.store(partial_grad_bias + tl.program_id(0) * num_cols + columns, tl.sum(bias_grad, 0), mask=columns < num_cols)


@triton.jit
def _geglu_forward(
    x,
    out,
    num_rows,
    num_cols,
    TANH: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    TILES_PER_PROGRAM: tl.constexpr,
):
    first_row = tl.program_id(0).to(tl.int64) * (TILES_PER_PROGRAM * BLOCK_ROWS)
    num_rows -= first_row
    out, x = out + first_row * num_cols, x + first_row * (2 * num_cols)  # whose rows are twice as wide
    columns = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    for tile in range(TILES_PER_PROGRAM):
        row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        mask = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        offsets, gate_offsets = row[:, None] * num_cols + columns[None, :], row[:, None] * (2 * num_cols) + columns[None, :]
        gate = tl.load(x + gate_offsets, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + gate_offsets + num_cols, mask=mask, other=0.0).to(tl.float32)
        cdf, _ = _gelu_cdf(gate, TANH)
        tl.store(out + offsets, (gate * cdf * value).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _geglu_backward(
    grad_out,
    x,
    grad_input,
    num_rows,
    num_cols,
    TANH: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    TILES_PER_PROGRAM: tl.constexpr,
):
    first_row = tl.program_id(0).to(tl.int64) * (TILES_PER_PROGRAM * BLOCK_ROWS)
    num_rows -= first_row
    grad_out, x, grad_input = (
        grad_out + first_row * num_cols,
        x + first_row * (2 * num_cols),
        grad_input + first_row * (2 * num_cols),
    )  # whose rows are twice as wide
    columns = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    for tile in range(TILES_PER_PROGRAM):
        row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        mask = (row < num_rows)[:, None] & (columns < num_cols)[None, :]
        at, gate_offsets = row[:, None] * num_cols + columns[None, :], row[:, None] * (2 * num_cols) + columns[None, :]
        gate = tl.load(x + gate_offsets, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + gate_offsets + num_cols, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_out + at, mask=mask, other=0.0).to(tl.float32)
        cdf, pdf = _gelu_cdf(gate, TANH)
        tl.store(grad_input + gate_offsets, (grad * value * (cdf + gate * pdf)).to(grad_input.dtype.element_ty), mask=mask)
        tl.store(grad_input + gate_offsets + num_cols, (grad * gate * cdf).to(grad_input.dtype.element_ty), mask=mask)
