"""Cross entropy of a table's scores: the scores become their own gradient where they lie, and nothing else is as large."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def entropy(rows: Tensor, table: Tensor, bias: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over rows of -log softmax(rows table' + bias)[answer], and how many answers came first."""
    return _Entropy.apply(rows, table, bias, answers)


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, table: Tensor, bias: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.addmm(bias, rows, table.T)
        losses = torch.empty(len(rows), device=rows.device, dtype=torch.float32)
        right = torch.empty(len(rows), device=rows.device, dtype=torch.int32)
        asked = any(ctx.needs_input_grad)
        if len(rows):
            _entropy[(len(rows),)](scores, answers, losses, right, scores.shape[1], SLOPE=asked, BLOCK=BLOCK, num_warps=8)
        if asked:
            ctx.save_for_backward(scores, rows, table)
        total, right = losses.sum(), right.sum()
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    def backward(ctx: Any, total: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        slopes, rows, table = ctx.saved_tensors
        down = (slopes @ table) * total.to(rows.dtype)
        across = slopes.T @ (rows * total.to(rows.dtype))
        return down, across, slopes.sum(0, dtype=torch.float32).mul(total).to(slopes.dtype), None


@triton.jit
def _entropy(scores, answers, losses, right, words, SLOPE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here, answer = scores + row * words, tl.load(answers + row)
    best, total, first = float("-inf"), 0.0, 0
    for begin in range(0, words, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        x = tl.load(here + columns, mask=columns < words, other=float("-inf")).to(tl.float32)
        high = tl.max(x, 0)
        first = tl.where(high > best, begin + tl.argmax(x, 0), first)
        now = tl.maximum(best, high)
        total = total * tl.exp(best - now) + tl.sum(tl.exp(x - now), 0)
        best = now
    whole = best + tl.log(total)
    tl.store(losses + row, whole - tl.load(here + answer).to(tl.float32))
    tl.store(right + row, (first == answer).to(tl.int32))
    if SLOPE:
        tl.debug_barrier()  # the answer's score is read before it is overwritten
        for begin in range(0, words, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            x = tl.load(here + columns, mask=columns < words, other=float("-inf")).to(tl.float32)
            slope = tl.exp(x - whole) - tl.where(columns == answer, 1.0, 0.0)
            tl.store(here + columns, slope.to(scores.dtype.element_ty), mask=columns < words)
