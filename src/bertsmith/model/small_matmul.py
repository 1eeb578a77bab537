"""Linear layers on a few rows on a CPU, as in token-by-token decoding, where time is bound by reading the weights.

The weight is split into chunks and multiplied by a batched matmul, which several threads read at once and which is faster
than one product even on one thread: measured with one row and 768 input features, 25 to 32 GB/s with two threads, where
torch's linear reaches 10 to 13.
"""

from functools import lru_cache, partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T", bound=nn.Module)

MAX_COLUMN_ROWS, MAX_ROWS = 4, 16  # up to the first, x is multiplied as columns; up to the second, as rows
MIN_CHUNKS, MAX_CHUNKS = 4, 64  # chunks of a weight matrix
MIN_WEIGHT_NUMEL = 1 << 17  # smallest weight for which it pays off


def use_small_linear(model: T) -> T:
    """Make the model's nn.Linear layers use `small_linear` when no gradient is recorded, in place; weights are unchanged."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_linear_forward, module)  # type: ignore[method-assign]
    return model


def small_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (rows, in) and (out, in) -> (rows, out); F.linear where chunking does not pay off or gradients are on."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or x.shape[0] > MAX_ROWS or not _is_worthwhile(x, weight):
        return F.linear(x, weight, bias)
    num_rows, (out_features, in_features), num_chunks = x.shape[0], weight.shape, _num_chunks(weight.shape[0])
    chunks = weight.view(num_chunks, out_features // num_chunks, in_features)
    if num_rows > MAX_COLUMN_ROWS:
        output = (
            torch.bmm(x.expand(num_chunks, num_rows, in_features), chunks.mT).transpose(0, 1).reshape(num_rows, out_features)
        )
        return output if bias is None else output.add_(bias)
    columns = x.T.expand(num_chunks, in_features, num_rows)
    if bias is None:
        return torch.bmm(chunks, columns).view(out_features, num_rows).T
    return torch.baddbmm(bias.view(num_chunks, out_features // num_chunks, 1), chunks, columns).view(out_features, num_rows).T


def _linear_forward(module: nn.Linear, x: Tensor) -> Tensor:
    return small_linear(x, module.weight, module.bias)


def _is_worthwhile(x: Tensor, weight: Tensor) -> bool:
    is_large = weight.numel() >= MIN_WEIGHT_NUMEL and x.device.type == "cpu" and x.dim() == 2
    return is_large and x.dtype == weight.dtype and weight.is_contiguous() and _num_chunks(weight.shape[0]) > 1


@lru_cache
def _num_chunks(out_features: int) -> int:
    """Number of equal chunks of the output features; 1 if none divides them."""
    return next((count for count in [*range(MIN_CHUNKS, MAX_CHUNKS + 1), 3, 2] if out_features % count == 0), 1)
