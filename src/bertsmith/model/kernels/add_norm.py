"""Add what a part of a block says to the stream, with dropout, and norm the sum: one pass there, one pass back."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dropout_rng import draw_seeds, drop_threshold, keep_mask

UNSPECIALIZED_ARGS = ["first", "second", "least"]  # Triton would compile anew for seeds that happen to be multiples of 16
PROGRAMS_PER_SM = 16  # of the way back, for each multiprocessor: each keeps sums of its own for the gain and the shift


def fused_add_norm(
    residual: Tensor,
    sublayer_out: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    dropout: float,
    return_sum: bool,
):
    """The normed sum twice, or the normed sum and the sum itself (`sum_too`): what goes on is read by two, and the two
    gradients that come back are added within the kernel."""
    return _FusedAddNorm.apply(residual, sublayer_out, weight, bias, eps, dropout, return_sum)


class _FusedAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, sublayer_out: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float,
                dropout: float, return_sum: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
        residual = residual.contiguous()
        sublayer_out = sublayer_out if sublayer_out is None else sublayer_out.contiguous()
        rows, width = residual.shape
        out = torch.empty_like(residual)
        total = residual if sublayer_out is None else torch.empty_like(residual)
        facts = torch.empty(2, rows, device=residual.device, dtype=torch.float32)
        dice = (*(draw_seeds() if dropout else (0, 0)), drop_threshold(dropout), 1 / (1 - dropout))
        if rows:
            _forward[(rows,)](
                residual, sublayer_out, weight, bias, total, out, facts, rows, width, eps, *dice,
                BLOCK=triton.next_power_of_2(width), DELTA=sublayer_out is not None, SHIFT=bias is not None,
                DROP=dropout > 0, num_warps=_num_warps(width),
            )  # fmt: skip
        ctx.save_for_backward(total, weight, bias, facts)
        ctx.dice, ctx.drop, ctx.delta, ctx.sum_too = dice, dropout > 0, sublayer_out is not None, return_sum
        ctx.set_materialize_grads(False)
        return out, total.view_as(total) if return_sum else out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_second: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        total, gain, shift, facts = ctx.saved_tensors
        rows, width = total.shape
        if grad_out is None and not ctx.sum_too:
            grad_out, grad_second = grad_second, None
        if grad_out is None:  # only the stream was used
            grad_out = torch.zeros_like(total)
        programs = max(1, min(rows, PROGRAMS_PER_SM * _num_sms(total)))
        sums = torch.zeros(2, programs, width, device=total.device, dtype=torch.float32)
        down = torch.empty_like(total)
        dropped = torch.empty_like(total) if ctx.drop and ctx.delta else down
        if rows:
            _backward[(programs,)](
                grad_out.contiguous(), None if grad_second is None else grad_second.contiguous(), total, gain, facts, down, dropped, sums,
                rows, width, *ctx.dice, BLOCK=triton.next_power_of_2(width), OTHER=grad_second is not None,
                STREAM=ctx.sum_too, DROP=ctx.drop and ctx.delta, num_warps=_num_warps(width),
            )  # fmt: skip
        gains, shifts = sums.sum(1)
        gains, shifts = gains.to(gain.dtype), None if shift is None else shifts.to(shift.dtype)
        return down, dropped if ctx.delta else None, gains, shifts, None, None, None


def _num_warps(hidden_size: int) -> int:
    return 1 if hidden_size <= 1024 else 4 if hidden_size <= 2048 else 8


def _num_sms(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


@triton.jit(do_not_specialize=UNSPECIALIZED_ARGS)
def _forward(residual, sublayer_out, ln_weight, ln_bias, residual_out, out, stats, rows, hidden_size, eps, first, second, least, scale,
             BLOCK: tl.constexpr, DELTA: tl.constexpr, SHIFT: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    real = columns < hidden_size
    at = row * hidden_size + columns
    x = tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    if DELTA:
        more = tl.load(sublayer_out + at, mask=real, other=0.0).to(tl.float32)
        if DROP:
            more = tl.where(keep_mask(at, first, second, least), more * scale, 0.0)
        rounded = (x + more).to(residual_out.dtype.element_ty)
        tl.store(residual_out + at, rounded, mask=real)
        x = rounded.to(tl.float32)  # as the way back will see it
    mean = tl.sum(x, 0) / hidden_size
    from_mean = tl.where(real, x - mean, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(from_mean * from_mean, 0) / hidden_size + eps)
    y = from_mean * inverse * tl.load(ln_weight + columns, mask=real, other=0.0).to(tl.float32)
    if SHIFT:
        y += tl.load(ln_bias + columns, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=real)
    tl.store(stats + row, mean)
    tl.store(stats + rows + row, inverse)


@triton.jit(do_not_specialize=UNSPECIALIZED_ARGS)
def _backward(grad_out, grad_second, residual_out, ln_weight, stats, grad_residual, grad_sublayer, partial_grads, rows, hidden_size, first, second, least, scale,
              BLOCK: tl.constexpr, OTHER: tl.constexpr, STREAM: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    real = columns < hidden_size
    weight = tl.load(ln_weight + columns, mask=real, other=0.0).to(tl.float32)
    gains, shifts = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, programs):
        at = row * hidden_size.to(tl.int64) + columns
        y = tl.load(grad_out + at, mask=real, other=0.0).to(tl.float32)
        if OTHER:
            beside = tl.load(grad_second + at, mask=real, other=0.0).to(tl.float32)
            if not STREAM:
                y += beside
        mean, inverse = tl.load(stats + row), tl.load(stats + rows + row)
        x = tl.load(residual_out + at, mask=real, other=0.0).to(tl.float32)
        normed = tl.where(real, (x - mean) * inverse, 0.0)
        weighed = y * weight
        slope = (weighed - tl.sum(weighed, 0) / hidden_size - normed * (tl.sum(weighed * normed, 0) / hidden_size)) * inverse
        if OTHER and STREAM:
            slope += beside
        tl.store(grad_residual + at, slope.to(grad_residual.dtype.element_ty), mask=real)
        if DROP:
            kept = tl.where(keep_mask(at, first, second, least), slope * scale, 0.0)
            tl.store(grad_sublayer + at, kept.to(grad_sublayer.dtype.element_ty), mask=real)
        gains += y * normed
        shifts += y
    tl.store(partial_grads + program * hidden_size + columns, gains, mask=real)
    tl.store(partial_grads + (programs + program) * hidden_size + columns, shifts, mask=real)
