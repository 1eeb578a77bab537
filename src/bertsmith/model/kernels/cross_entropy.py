"""Fused output projection and cross-entropy: the gradient overwrites the logits, to save a tensor of their size."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def fused_linear_cross_entropy(hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over rows of -log softmax(hidden_states @ weight.T + bias)[label], and how many labels are the argmax.

    hidden_states: (rows, hidden_size); weight: (vocab_size, hidden_size); bias: (vocab_size,); labels: (rows,).
    """
    return _FusedLinearCrossEntropy.apply(hidden_states, weight, bias, labels)


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.addmm(bias, hidden_states, weight.T)
        losses = torch.empty(len(hidden_states), device=hidden_states.device, dtype=torch.float32)
        correct = torch.empty(len(hidden_states), device=hidden_states.device, dtype=torch.int32)
        needs_grad = any(ctx.needs_input_grad)
        if len(hidden_states):
            _cross_entropy_kernel[(len(hidden_states),)](
                logits, labels, losses, correct, logits.shape[1], COMPUTE_GRAD=needs_grad, BLOCK=BLOCK, num_warps=8
            )
        if needs_grad:
            ctx.save_for_backward(logits, hidden_states, weight)
        total, correct = losses.sum(), correct.sum()
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        grad_logits, hidden_states, weight = ctx.saved_tensors
        # in float32: rounded to bf16, grad_loss would change every gradient by up to 0.4 %
        grad_hidden = ((grad_logits @ weight).float() * grad_loss).to(hidden_states.dtype)
        grad_weight = grad_logits.T @ (hidden_states.float() * grad_loss).to(hidden_states.dtype)
        return grad_hidden, grad_weight, grad_logits.sum(0, dtype=torch.float32).mul(grad_loss).to(grad_logits.dtype), None


@triton.jit
def _cross_entropy_kernel(logits, labels, losses, correct, vocab_size, COMPUTE_GRAD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    row_logits, label = logits + row * vocab_size, tl.load(labels + row)
    running_max, sum_exp, argmax = float("-inf"), 0.0, 0
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(row_logits + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)
        block_max = tl.max(x, 0)
        argmax = tl.where(block_max > running_max, start + tl.argmax(x, 0), argmax)
        new_max = tl.maximum(running_max, block_max)
        sum_exp = sum_exp * tl.exp(running_max - new_max) + tl.sum(tl.exp(x - new_max), 0)
        running_max = new_max
    lse = running_max + tl.log(sum_exp)
    tl.store(losses + row, lse - tl.load(row_logits + label).to(tl.float32))
    tl.store(correct + row, (argmax == label).to(tl.int32))
    if COMPUTE_GRAD:
        tl.debug_barrier()  # the label's logit is read before it is overwritten
        for start in range(0, vocab_size, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(row_logits + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)
            grad = tl.exp(x - lse) - tl.where(columns == label, 1.0, 0.0)
            tl.store(row_logits + columns, grad.to(logits.dtype.element_ty), mask=columns < vocab_size)
