"""Storage of weights as integers: symmetric quantization of matrices with one float32 scale per row; others stay as they are.

| tensor | |
|---|---|
| `W`, int8 (rows, columns) | W = int8 * scale |
| `W`, uint8 (rows, columns / 2) | two numbers of four bits each, see `folder.unpack_int4` |
| `W:scale`, float32 (rows,) | |
| `W:input_scale`, float32 (columns,) | what a layer multiplies its inputs by: W = int8 * scale * input_scale |

Four bits and `:input_scale` are written by `quantize` alone. Files are a quarter of float32's size; `load` dequantizes.
Measured on a 6x384 model: one scale per 64 weights instead of one per row does not lower its loss.
"""

from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from .folder import INPUT_SCALE_SUFFIX, SCALE_SUFFIX

INT8_MAX = 127
MIN_SCALE = torch.finfo(torch.float32).tiny  # keeps the scale of an all-zero row above 0


def quantize_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """State dict as stored: an int8 tensor and its row scales for each matrix. Rounding error is at most half a scale."""
    quantized: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim < 2 or not weight.is_floating_point():
            quantized[name] = weight
            continue
        if not bool(torch.isfinite(weight).all()):
            raise UserError(f"{name} contains NaN or infinity and cannot be stored as int8")
        quantized[name], quantized[name + SCALE_SUFFIX] = quantize_rows(weight.float())
    return quantized


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, ...) -> int8 of the same shape and (rows,) scales max|w| / 127: the largest of a row becomes 127 or -127."""
    rows = weight.flatten(1)
    absmax = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    scale = (absmax / INT8_MAX).clamp(min=MIN_SCALE)
    return (weight / _broadcast_scale(scale, weight)).round().to(torch.int8), scale


def dequantize_weights(quantized: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """State dict with float32 weights; an int8 matrix without scales, or scales without a matrix, raise a UserError."""
    weights: dict[str, Tensor] = {}
    for name, tensor in quantized.items():
        scale = quantized.get(name + SCALE_SUFFIX)
        if suffix := next((suffix for suffix in (INPUT_SCALE_SUFFIX, SCALE_SUFFIX) if name.endswith(suffix)), None):
            if name.removesuffix(suffix) not in quantized:
                raise UserError(f"{folder} does not match its config.json: {name} has a scale, but no int8 matrix")
        elif scale is not None:
            weights[name] = _dequantize(name, tensor, scale, quantized.get(name + INPUT_SCALE_SUFFIX), folder)
        elif tensor.dtype in (torch.int8, torch.uint8) and tensor.ndim > 1:
            kind = "int8" if tensor.dtype == torch.int8 else "uint8"
            raise UserError(f"{folder} does not match its config.json: {name} is {kind}, but has no {SCALE_SUFFIX.strip(':')}")
        else:
            weights[name] = tensor
    return weights


def max_rounding_error(weights: dict[str, Tensor], quantized: dict[str, Tensor]) -> float:
    """Largest quantization error of any weight in units of its row's scale (at most 0.5); inf if another tensor changed."""
    max_error = 0.0
    for name, weight in weights.items():
        if (scale := quantized.get(name + SCALE_SUFFIX)) is not None and weight.numel():
            row_scale = _broadcast_scale(scale, weight).double()
            max_error = max(max_error, float((weight.double() / row_scale - quantized[name].double()).abs().max()))
        elif scale is None and not torch.equal(weight, quantized[name]):
            return float("inf")
    return max_error


def _dequantize(name: str, matrix: Tensor, scale: Tensor, input_scale: Tensor | None, folder: Path) -> Tensor:
    if matrix.dtype == torch.uint8 and matrix.ndim == 2:
        matrix = torch.cat([matrix & 15, matrix >> 4], -1).to(torch.int8) - 8
    if matrix.dtype != torch.int8 or scale.shape != matrix.shape[:1] or not scale.is_floating_point():
        raise UserError(
            f"{folder} does not match its config.json: {name} is {matrix.dtype} {list(matrix.shape)} with {scale.dtype} scales "
            f"{list(scale.shape)}, not int8 with one scale for each row"
        )
    weight = matrix * _broadcast_scale(scale.float(), matrix)  # promoted to float32 in one pass
    if input_scale is None:
        return weight
    if input_scale.shape != matrix.shape[1:] or not input_scale.is_floating_point():
        raise UserError(f"{folder} does not match its config.json: {name}{INPUT_SCALE_SUFFIX} has not one scale a column")
    return weight.mul_(input_scale.float())


def _broadcast_scale(scale: Tensor, matrix: Tensor) -> Tensor:
    return scale.reshape(-1, *[1] * (matrix.ndim - 1))
