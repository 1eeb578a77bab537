"""Operators of torch that torch.onnx has no translation for, in operators of ONNX."""

from collections.abc import Callable
from typing import Any

import torch


def translation_table() -> dict[Any, Callable[..., Any]]:
    """For `custom_translation_table` of torch.onnx.export."""
    return {torch.ops.aten.sort.stable: stable_sort, torch.ops.aten.searchsorted.Tensor: searchsorted}


def stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """TopK of all elements, which puts the lower index first where values are equal."""
    from onnxscript import opset20

    op: Any = opset20  # its types are those of tensors

    size = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]), axis=0)
    return op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)


def searchsorted(
    sorted_sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    """For a vector `sorted_sequence`: how many of its elements are below each value (`right`: or equal to it)."""
    from onnxscript import opset20

    op: Any = opset20  # its types are those of tensors

    compare = op.LessOrEqual if right else op.Less
    is_before = compare(sorted_sequence, op.Unsqueeze(values, op.Constant(value_ints=[-1])))
    return op.ReduceSum(op.Cast(is_before, to=7), op.Constant(value_ints=[-1]), keepdims=0)
