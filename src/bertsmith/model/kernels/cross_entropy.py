"""Cross entropy of a table's scores: the scores become their own gradient where they lie, and nothing else is as large."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def fused_linear_cross_entropy(hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over rows of -log softmax(rows table' + bias)[answer], and how many answers came first."""
    return _FusedLinearCrossEntropy.apply(hidden_states, weight, bias, labels)


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.addmm(bias, hidden_states, weight.T)
        losses = torch.empty(len(hidden_states), device=hidden_states.device, dtype=torch.float32)
        right = torch.empty(len(hidden_states), device=hidden_states.device, dtype=torch.int32)
        asked = any(ctx.needs_input_grad)
        if len(hidden_states):
            _cross_entropy_kernel[(len(hidden_states),)](
                scores, labels, losses, right, scores.shape[1], SLOPE=asked, BLOCK=BLOCK, num_warps=8
            )
        if asked:
            ctx.save_for_backward(scores, hidden_states, weight)
        total, right = losses.sum(), right.sum()
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        slopes, rows, table = ctx.saved_tensors
        down = (slopes @ table) * grad_loss.to(rows.dtype)
        across = slopes.T @ (rows * grad_loss.to(rows.dtype))
        return down, across, slopes.sum(0, dtype=torch.float32).mul(grad_loss).to(slopes.dtype), None


@triton.jit
def _cross_entropy_kernel(logits, labels, losses, correct, vocab_size, SLOPE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here, answer = logits + row * vocab_size, tl.load(labels + row)
    best, total, first = float("-inf"), 0.0, 0
    for begin in range(0, vocab_size, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        x = tl.load(here + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)
        high = tl.max(x, 0)
        first = tl.where(high > best, begin + tl.argmax(x, 0), first)
        now = tl.maximum(best, high)
        total = total * tl.exp(best - now) + tl.sum(tl.exp(x - now), 0)
        best = now
    whole = best + tl.log(total)
    tl.store(losses + row, whole - tl.load(here + answer).to(tl.float32))
    tl.store(correct + row, (first == answer).to(tl.int32))
    if SLOPE:
        tl.debug_barrier()  # the answer's score is read before it is overwritten
        for begin in range(0, vocab_size, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            x = tl.load(here + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)
            slope = tl.exp(x - whole) - tl.where(columns == answer, 1.0, 0.0)
            tl.store(here + columns, slope.to(logits.dtype.element_ty), mask=columns < vocab_size)
