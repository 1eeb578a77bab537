"""Weights in a quarter of their room: matrices as int8 with a scale for each row, all else as it is.

Measured on a 6x384 model: a scale for every 64 numbers, instead of one for every row, buys nothing that shows in its loss.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput

STORED: dict[str, Any] = {"kind": "packed", "bits": 8, "scale": "row"}  # what config.json says of such weights
SCALE = ":scale"  # after the name of a matrix; no parameter of a model is called so
MOST = 127
TINY = torch.finfo(torch.float32).tiny  # the least scale: a row of zeros has one too


def packed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As they are stored: for each matrix an int8 one and the scales of its rows; no weight moves by over half a scale."""
    stored: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim < 2 or not weight.is_floating_point():
            stored[name] = weight
            continue
        if not bool(torch.isfinite(weight).all()):
            raise BadInput(f"{name} holds what is no number: such a model is broken, and cannot be packed")
        stored[name], stored[name + SCALE] = rounded(weight.float())
    return stored


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, ...) to int8 of the same shape, and (rows,) scales: the largest of a row becomes 127 or -127."""
    rows = weight.flatten(1)
    largest = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    scale = (largest / MOST).clamp(min=TINY)
    return (weight / _beside(scale, weight)).round().to(torch.int8), scale


def expanded(stored: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The weights as float32; a matrix without its scales, or scales without their matrix, are refused by name."""
    weights: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        scale = stored.get(name + SCALE)
        if name.endswith(SCALE):
            if name.removesuffix(SCALE) not in stored:
                raise BadInput(f"{folder} does not fit its config.json: {name} has no matrix")
        elif scale is not None:
            weights[name] = _expanded(name, tensor, scale, folder)
        elif tensor.dtype == torch.int8:
            raise BadInput(f"{folder} does not fit its config.json: {name} is packed, and has no {SCALE.strip(':')}")
        else:
            weights[name] = tensor
    return weights


def furthest(weights: dict[str, Tensor], stored: dict[str, Tensor]) -> float:
    """The largest error of any packed weight, in scales of its row: rounding gives a half at most."""
    found = 0.0
    for name, weight in weights.items():
        if (scale := stored.get(name + SCALE)) is not None and weight.numel():
            steps = _beside(scale, weight).double()
            found = max(found, float((weight.double() / steps - stored[name].double()).abs().max()))
        elif scale is None and not torch.equal(weight, stored[name]):
            return float("inf")
    return found


def _expanded(name: str, matrix: Tensor, scale: Tensor, folder: Path) -> Tensor:
    if matrix.dtype != torch.int8 or scale.shape != matrix.shape[:1] or not scale.is_floating_point():
        raise BadInput(
            f"{folder} does not fit its config.json: {name} is {matrix.dtype} {list(matrix.shape)} with {scale.dtype} scales "
            f"{list(scale.shape)}, not int8 with one for each row"
        )
    return matrix.float() * _beside(scale.float(), matrix)


def _beside(scale: Tensor, matrix: Tensor) -> Tensor:
    return scale.reshape(-1, *[1] * (matrix.ndim - 1))
