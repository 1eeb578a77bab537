"""Weights in a quarter of their room: matrices as int8 with a scale for each row, all else as it is.

Measured on a 6x384 model: a scale for every 64 numbers, instead of one for every row, buys nothing that shows in its loss.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError

INT8_FORMAT: dict[str, Any] = {"kind": "packed", "bits": 8, "scale": "row"}  # what config.json says of such weights
SCALE_SUFFIX = ":scale"  # after the name of a matrix; no parameter of a model is called so
INT8_MAX = 127
MIN_SCALE = torch.finfo(torch.float32).tiny  # the least scale: a row of zeros has one too


def quantize_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As they are stored: for each matrix an int8 one and the scales of its rows; no weight moves by over half a scale."""
    stored: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim < 2 or not weight.is_floating_point():
            stored[name] = weight
            continue
        if not bool(torch.isfinite(weight).all()):
            raise UserError(f"{name} holds what is no number: such a model is broken, and cannot be packed")
        stored[name], stored[name + SCALE_SUFFIX] = quantize_rows(weight.float())
    return stored


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, ...) to int8 of the same shape, and (rows,) scales: the largest of a row becomes 127 or -127."""
    rows = weight.flatten(1)
    largest = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    scale = (largest / INT8_MAX).clamp(min=MIN_SCALE)
    return (weight / _broadcast_scale(scale, weight)).round().to(torch.int8), scale


def dequantize_weights(quantized: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The weights as float32; a matrix without its scales, or scales without their matrix, are refused by name."""
    weights: dict[str, Tensor] = {}
    for name, tensor in quantized.items():
        scale = quantized.get(name + SCALE_SUFFIX)
        if name.endswith(SCALE_SUFFIX):
            if name.removesuffix(SCALE_SUFFIX) not in quantized:
                raise UserError(f"{folder} does not fit its config.json: {name} has no matrix")
        elif scale is not None:
            weights[name] = _dequantize(name, tensor, scale, folder)
        elif tensor.dtype == torch.int8:
            raise UserError(f"{folder} does not fit its config.json: {name} is packed, and has no {SCALE_SUFFIX.strip(':')}")
        else:
            weights[name] = tensor
    return weights


def max_rounding_error(weights: dict[str, Tensor], quantized: dict[str, Tensor]) -> float:
    """The largest error of any packed weight, in scales of its row: rounding gives a half at most."""
    found = 0.0
    for name, weight in weights.items():
        if (scale := quantized.get(name + SCALE_SUFFIX)) is not None and weight.numel():
            steps = _broadcast_scale(scale, weight).double()
            found = max(found, float((weight.double() / steps - quantized[name].double()).abs().max()))
        elif scale is None and not torch.equal(weight, quantized[name]):
            return float("inf")
    return found


def _dequantize(name: str, matrix: Tensor, scale: Tensor, folder: Path) -> Tensor:
    if matrix.dtype != torch.int8 or scale.shape != matrix.shape[:1] or not scale.is_floating_point():
        raise UserError(
            f"{folder} does not fit its config.json: {name} is {matrix.dtype} {list(matrix.shape)} with {scale.dtype} scales "
            f"{list(scale.shape)}, not int8 with one for each row"
        )
    return matrix.float() * _broadcast_scale(scale.float(), matrix)


def _broadcast_scale(scale: Tensor, matrix: Tensor) -> Tensor:
    return scale.reshape(-1, *[1] * (matrix.ndim - 1))
