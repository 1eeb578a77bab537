"""`Linear`: the linear layer of all modules, and a faster product for a few rows on a CPU.

In token-by-token decoding, time is bound by reading the weights. `small_linear` splits the weight into chunks and multiplies by
a batched matmul, which several threads read at once and which is faster than one product even on one thread: measured with one
row and 768 input features, 25 to 32 GB/s with two threads, where torch's linear reaches 10 to 13.
"""

from functools import lru_cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T", bound=nn.Module)

MAX_COLUMN_ROWS, MAX_ROWS = 4, 16  # up to the first, x is multiplied as columns; up to the second, as rows
MIN_CHUNKS, MAX_CHUNKS = 4, 64  # chunks of a weight matrix
MIN_WEIGHT_NUMEL = 1 << 17  # smallest weight for which it pays off


class Linear(nn.Linear):
    """nn.Linear whose weight may stack several matrices, `num_parts` of equal size (queries, keys and values; gate and value).

    Muon and LoRA treat each part as a matrix of its own.
    """

    uses_small_linear = False  # see `use_small_linear`

    def __init__(self, in_features: int, out_features: int, bias: bool = True, num_parts: int = 1) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.num_parts = num_parts

    def forward(self, x: Tensor) -> Tensor:
        product = small_linear if self.uses_small_linear else F.linear
        return product(x, self.weight, self.bias)


def use_small_linear(model: T) -> T:
    """Make the model's `Linear` layers use `small_linear`, which is faster in decoding; returns the model."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.uses_small_linear = True
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


def _is_worthwhile(x: Tensor, weight: Tensor) -> bool:
    is_large = weight.numel() >= MIN_WEIGHT_NUMEL and x.device.type == "cpu" and x.dim() == 2
    return is_large and x.dtype == weight.dtype and weight.is_contiguous() and _num_chunks(weight.shape[0]) > 1


@lru_cache
def _num_chunks(out_features: int) -> int:
    """Number of equal chunks of the output features; 1 if none divides them."""
    return next((count for count in [*range(MIN_CHUNKS, MAX_CHUNKS + 1), 3, 2] if out_features % count == 0), 1)
