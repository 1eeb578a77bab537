"""Fused dropout, residual add and LayerNorm: one kernel forward, one backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dropout_rng import draw_seeds, drop_threshold, keep_mask

UNSPECIALIZED_ARGS = ["seed1", "seed2", "threshold"]  # Triton would recompile for seeds that are multiples of 16
PROGRAMS_PER_SM = 16  # of the backward kernel: each sums the gradients of weight and bias over its rows


def fused_add_norm(
    residual: Tensor,
    sublayer_out: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    dropout: float,
    return_sum: bool,
):
    """LayerNorm(residual + dropout(sublayer_out)), (tokens, hidden_size), returned twice; or with `return_sum` it and the sum.

    Two readers (the next sublayer and its residual connection) get an output each, so that the kernel can add their gradients.
    """
    return _FusedAddNorm.apply(residual, sublayer_out, weight, bias, eps, dropout, return_sum)


class _FusedAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, sublayer_out: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float,
                dropout: float, return_sum: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
        residual = residual.contiguous()
        sublayer_out = sublayer_out if sublayer_out is None else sublayer_out.contiguous()
        rows, hidden_size = residual.shape
        out = torch.empty_like(residual)
        total = residual if sublayer_out is None else torch.empty_like(residual)
        stats = torch.empty(2, rows, device=residual.device, dtype=torch.float32)
        dropout_args = (*(draw_seeds() if dropout else (0, 0)), drop_threshold(dropout), 1 / (1 - dropout))
        if rows:
            _forward[(rows,)](
                residual, sublayer_out, weight, bias, total, out, stats, rows, hidden_size, eps, *dropout_args,
                BLOCK=triton.next_power_of_2(hidden_size), HAS_SUBLAYER=sublayer_out is not None, HAS_BIAS=bias is not None,
                HAS_DROPOUT=dropout > 0, num_warps=_num_warps(hidden_size),
            )  # fmt: skip
        ctx.save_for_backward(total, weight, bias, stats)
        ctx.dropout_args, ctx.return_sum = dropout_args, return_sum
        ctx.has_dropout, ctx.has_sublayer = dropout > 0, sublayer_out is not None
        ctx.set_materialize_grads(False)
        return out, total.view_as(total) if return_sum else out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_second: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        total, weight, bias, stats = ctx.saved_tensors
        rows, hidden_size = total.shape
        if grad_out is None and not ctx.return_sum:
            grad_out, grad_second = grad_second, None
        if grad_out is None:  # only the sum was used
            grad_out = torch.zeros_like(total)
        programs = max(1, min(rows, PROGRAMS_PER_SM * _num_sms(total)))
        partial_grads = torch.zeros(2, programs, hidden_size, device=total.device, dtype=torch.float32)
        grad_residual = torch.empty_like(total)
        grad_sublayer = torch.empty_like(total) if ctx.has_dropout and ctx.has_sublayer else grad_residual
        if rows:
            _backward[(programs,)](
                grad_out.contiguous(), None if grad_second is None else grad_second.contiguous(), total, weight, stats,
                grad_residual, grad_sublayer, partial_grads, rows, hidden_size, *ctx.dropout_args,
                BLOCK=triton.next_power_of_2(hidden_size), HAS_SECOND_GRAD=grad_second is not None, RETURN_SUM=ctx.return_sum,
                HAS_DROPOUT=ctx.has_dropout and ctx.has_sublayer, num_warps=_num_warps(hidden_size),
            )  # fmt: skip
        grad_weight, grad_bias = partial_grads.sum(1)
        grad_weight, grad_bias = grad_weight.to(weight.dtype), None if bias is None else grad_bias.to(bias.dtype)
        return grad_residual, grad_sublayer if ctx.has_sublayer else None, grad_weight, grad_bias, None, None, None


def _num_warps(hidden_size: int) -> int:
    return 1 if hidden_size <= 1024 else 4 if hidden_size <= 2048 else 8


def _num_sms(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


@triton.jit(do_not_specialize=UNSPECIALIZED_ARGS)
def _forward(
    residual, sublayer_out, ln_weight, ln_bias, residual_out, out, stats, rows, hidden_size, eps, seed1, seed2, threshold,
    scale, BLOCK: tl.constexpr, HAS_SUBLAYER: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden_size
    offsets = row * hidden_size + columns
    x = tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_SUBLAYER:
        update = tl.load(sublayer_out + offsets, mask=mask, other=0.0).to(tl.float32)
        if HAS_DROPOUT:
            update = tl.where(keep_mask(offsets, seed1, seed2, threshold), update * scale, 0.0)
        rounded = (x + update).to(residual_out.dtype.element_ty)
        tl.store(residual_out + offsets, rounded, mask=mask)
        x = rounded.to(tl.float32)  # as the backward pass will read it
    mean = tl.sum(x, 0) / hidden_size
    centered = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centered * centered, 0) / hidden_size + eps)
    y = centered * rstd * tl.load(ln_weight + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(ln_bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + offsets, y.to(out.dtype.element_ty), mask=mask)
    tl.store(stats + row, mean)
    tl.store(stats + rows + row, rstd)


@triton.jit(do_not_specialize=UNSPECIALIZED_ARGS)
def _backward(
    grad_out, grad_second, residual_out, ln_weight, stats, grad_residual, grad_sublayer, partial_grads, rows, hidden_size,
    seed1, seed2, threshold, scale, BLOCK: tl.constexpr, HAS_SECOND_GRAD: tl.constexpr, RETURN_SUM: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden_size
    weight = tl.load(ln_weight + columns, mask=mask, other=0.0).to(tl.float32)
    grad_weight, grad_bias = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, programs):
        offsets = row * hidden_size.to(tl.int64) + columns
        dy = tl.load(grad_out + offsets, mask=mask, other=0.0).to(tl.float32)
        if HAS_SECOND_GRAD:
            second_grad = tl.load(grad_second + offsets, mask=mask, other=0.0).to(tl.float32)
            if not RETURN_SUM:
                dy += second_grad
        mean, rstd = tl.load(stats + row), tl.load(stats + rows + row)
        x = tl.load(residual_out + offsets, mask=mask, other=0.0).to(tl.float32)
        x_hat = tl.where(mask, (x - mean) * rstd, 0.0)
        weighted = dy * weight
        dx = (weighted - tl.sum(weighted, 0) / hidden_size - x_hat * (tl.sum(weighted * x_hat, 0) / hidden_size)) * rstd
        if HAS_SECOND_GRAD and RETURN_SUM:
            dx += second_grad
        tl.store(grad_residual + offsets, dx.to(grad_residual.dtype.element_ty), mask=mask)
        if HAS_DROPOUT:
            dropped = tl.where(keep_mask(offsets, seed1, seed2, threshold), dx * scale, 0.0)
            tl.store(grad_sublayer + offsets, dropped.to(grad_sublayer.dtype.element_ty), mask=mask)
        grad_weight += dy * x_hat
        grad_bias += dy
    tl.store(partial_grads + program * hidden_size + columns, grad_weight, mask=mask)
    tl.store(partial_grads + (programs + program) * hidden_size + columns, grad_bias, mask=mask)
