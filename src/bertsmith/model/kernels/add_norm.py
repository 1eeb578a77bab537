"""Add what a part of a block says to the stream, with dropout, and norm the sum: one pass there, one pass back."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dropout_rng import draw, left, limit

DICE = ["first", "second", "least"]  # Triton would compile anew for seeds that happen to be multiples of 16
PROGRAMS = 16  # of the way back, for each multiprocessor: each keeps sums of its own for the gain and the shift


def joined(stream: Tensor, delta: Tensor | None, gain: Tensor, shift: Tensor | None, eps: float, dropout: float, sum_too: bool):
    """The normed sum twice, or the normed sum and the sum itself (`sum_too`): what goes on is read by two, and the two
    gradients that come back are added within the kernel."""
    return _Joined.apply(stream, delta, gain, shift, eps, dropout, sum_too)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Tensor, delta: Tensor | None, gain: Tensor, shift: Tensor | None, eps: float,
                dropout: float, sum_too: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
        stream = stream.contiguous()
        delta = delta if delta is None else delta.contiguous()
        rows, width = stream.shape
        out = torch.empty_like(stream)
        total = stream if delta is None else torch.empty_like(stream)
        facts = torch.empty(2, rows, device=stream.device, dtype=torch.float32)
        dice = (*(draw() if dropout else (0, 0)), limit(dropout), 1 / (1 - dropout))
        if rows:
            _forward[(rows,)](
                stream, delta, gain, shift, total, out, facts, rows, width, eps, *dice,
                BLOCK=triton.next_power_of_2(width), DELTA=delta is not None, SHIFT=shift is not None,
                DROP=dropout > 0, num_warps=_warps(width),
            )  # fmt: skip
        ctx.save_for_backward(total, gain, shift, facts)
        ctx.dice, ctx.drop, ctx.delta, ctx.sum_too = dice, dropout > 0, delta is not None, sum_too
        ctx.set_materialize_grads(False)
        return out, total.view_as(total) if sum_too else out.view_as(out)

    @staticmethod
    def backward(ctx: Any, out: Tensor | None, other: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        total, gain, shift, facts = ctx.saved_tensors
        rows, width = total.shape
        if out is None and not ctx.sum_too:
            out, other = other, None
        if out is None:  # only the stream was used
            out = torch.zeros_like(total)
        programs = max(1, min(rows, PROGRAMS * _processors(total)))
        sums = torch.zeros(2, programs, width, device=total.device, dtype=torch.float32)
        down = torch.empty_like(total)
        dropped = torch.empty_like(total) if ctx.drop and ctx.delta else down
        if rows:
            _backward[(programs,)](
                out.contiguous(), None if other is None else other.contiguous(), total, gain, facts, down, dropped, sums,
                rows, width, *ctx.dice, BLOCK=triton.next_power_of_2(width), OTHER=other is not None,
                STREAM=ctx.sum_too, DROP=ctx.drop and ctx.delta, num_warps=_warps(width),
            )  # fmt: skip
        gains, shifts = sums.sum(1)
        gains, shifts = gains.to(gain.dtype), None if shift is None else shifts.to(shift.dtype)
        return down, dropped if ctx.delta else None, gains, shifts, None, None, None


def _warps(width: int) -> int:
    return 1 if width <= 1024 else 4 if width <= 2048 else 8


def _processors(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


@triton.jit(do_not_specialize=DICE)
def _forward(stream, delta, gain, shift, total, out, facts, rows, width, eps, first, second, least, scale,
             BLOCK: tl.constexpr, DELTA: tl.constexpr, SHIFT: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    real = columns < width
    at = row * width + columns
    x = tl.load(stream + at, mask=real, other=0.0).to(tl.float32)
    if DELTA:
        more = tl.load(delta + at, mask=real, other=0.0).to(tl.float32)
        if DROP:
            more = tl.where(left(at, first, second, least), more * scale, 0.0)
        rounded = (x + more).to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=real)
        x = rounded.to(tl.float32)  # as the way back will see it
    mean = tl.sum(x, 0) / width
    from_mean = tl.where(real, x - mean, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(from_mean * from_mean, 0) / width + eps)
    y = from_mean * inverse * tl.load(gain + columns, mask=real, other=0.0).to(tl.float32)
    if SHIFT:
        y += tl.load(shift + columns, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=real)
    tl.store(facts + row, mean)
    tl.store(facts + rows + row, inverse)


@triton.jit(do_not_specialize=DICE)
def _backward(out, other, total, gain, facts, down, dropped, sums, rows, width, first, second, least, scale,
              BLOCK: tl.constexpr, OTHER: tl.constexpr, STREAM: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    real = columns < width
    weight = tl.load(gain + columns, mask=real, other=0.0).to(tl.float32)
    gains, shifts = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, programs):
        at = row * width.to(tl.int64) + columns
        y = tl.load(out + at, mask=real, other=0.0).to(tl.float32)
        if OTHER:
            beside = tl.load(other + at, mask=real, other=0.0).to(tl.float32)
            if not STREAM:
                y += beside
        mean, inverse = tl.load(facts + row), tl.load(facts + rows + row)
        x = tl.load(total + at, mask=real, other=0.0).to(tl.float32)
        normed = tl.where(real, (x - mean) * inverse, 0.0)
        weighed = y * weight
        slope = (weighed - tl.sum(weighed, 0) / width - normed * (tl.sum(weighed * normed, 0) / width)) * inverse
        if OTHER and STREAM:
            slope += beside
        tl.store(down + at, slope.to(down.dtype.element_ty), mask=real)
        if DROP:
            kept = tl.where(left(at, first, second, least), slope * scale, 0.0)
            tl.store(dropped + at, kept.to(dropped.dtype.element_ty), mask=real)
        gains += y * normed
        shifts += y
    tl.store(sums + program * width + columns, gains, mask=real)
    tl.store(sums + (programs + program) * width + columns, shifts, mask=real)
