"""Products of a few rows on a CPU, as writing token by token makes them: they take as long as the weights take to be read.

A matrix in several parts is read by several threads at once, and by one alone quicker than the whole: measured with one row
and matrices of 768 columns, 25 to 32 GB a second with two threads, where torch's linear reads 10 to 13.
"""

from functools import lru_cache, partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T", bound=nn.Module)

MAX_COLUMN_ROWS, MAX_ROWS = 4, 16  # rows: so few lie beside each other as columns; more, up to so many, as rows
MIN_CHUNKS, MAX_CHUNKS = 4, 64  # parts of a matrix
MIN_WEIGHT_NUMEL = 1 << 17  # numbers of a matrix that is worth it


def use_small_linear(model: T) -> T:
    """The same model, whose linear layers multiply so where nothing is learnt; weights stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_linear_forward, module)  # type: ignore[method-assign]
    return model


def small_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(rows, out) of (rows, in) and (out, in)."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or x.shape[0] > MAX_ROWS or not _is_worthwhile(x, weight):
        return F.linear(x, weight, bias)
    rows, (out, into), parts = x.shape[0], weight.shape, _num_chunks(weight.shape[0])
    apart = weight.view(parts, out // parts, into)
    if rows > MAX_COLUMN_ROWS:
        found = torch.bmm(x.expand(parts, rows, into), apart.mT).transpose(0, 1).reshape(rows, out)
        return found if bias is None else found.add_(bias)
    columns = x.T.expand(parts, into, rows)
    if bias is None:
        return torch.bmm(apart, columns).view(out, rows).T
    return torch.baddbmm(bias.view(parts, out // parts, 1), apart, columns).view(out, rows).T


def _linear_forward(module: nn.Linear, x: Tensor) -> Tensor:
    return small_linear(x, module.weight, module.bias)


def _is_worthwhile(x: Tensor, weight: Tensor) -> bool:
    large = weight.numel() >= MIN_WEIGHT_NUMEL and x.device.type == "cpu" and x.dim() == 2
    return large and x.dtype == weight.dtype and weight.is_contiguous() and _num_chunks(weight.shape[0]) > 1


@lru_cache
def _num_chunks(out_features: int) -> int:
    """Of equal size; 1, where there is no such number."""
    return next((parts for parts in [*range(MIN_CHUNKS, MAX_CHUNKS + 1), 3, 2] if out_features % parts == 0), 1)
