"""Integers and scales of the matrices of a model, as its folder stores them (see `model.int8`).

The matrices of linear layers are int8 with a scale for each output, such that the product with uint8 activations is exact on
every CPU. Without VNNI, the instruction vpmaddubsw adds two products in 16 bits and saturates (onnxruntime issue 6004): answers
would differ between machines. So in each row, |w[2i]| + |w[2i + 1]| is at most 128: 255 * 128 < 2^15.

A few channels of a transformer's hidden states are far larger than the others and would take up the range of the activations.
So inputs are divided by a factor for each channel and the weights multiplied by it (SmoothQuant, Xiao et al. 2023, eq. 4).
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...model.folder import INPUT_SCALE_SUFFIX, SCALE_SUFFIX

Floats = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
TableBits = Literal[4, 8, 32]

INT8_MAX, INT4_MAX, UINT8_MAX = 127, 7, 255
MAX_PAIR = 128  # of |w[2i]| + |w[2i + 1]|, in steps
TINY = np.finfo(np.float32).tiny
MIN_SIZE = 64  # rows and columns of a matrix; smaller ones cost nothing in float32
SMOOTHING_STRENGTH = 0.75  # alpha of SmoothQuant: how much of the range moves from the activations to the weights
CLIPPED = np.linspace(1, 0.6, 9)  # ranges that are tried for rows of four bits, in units of their maximum


class ChannelRange(NamedTuple):
    """Least and greatest value of each input channel of a linear layer, 0 included; (inputs,) each."""

    lowest: Floats
    highest: Floats


def is_matrix(name: str, weight: NDArray[Any]) -> bool:
    """Whether a weight is stored as integers: a matrix that is not small."""
    return weight.ndim == 2 and weight.dtype == np.float32 and min(weight.shape) >= MIN_SIZE


def quantize_weights(
    weights: Mapping[str, NDArray[Any]], input_scales: Mapping[str, Floats], tables: Mapping[str, TableBits],
    float_names: frozenset[str] = frozenset(),
) -> Arrays:  # fmt: skip
    """The tensors as a folder stores them.

    Args:
        weights: state dict
        input_scales: of the layers that compute in int8: what their inputs are multiplied by
        tables: bits of the embedding tables
        float_names: weights that stay in float32
    """
    stored: Arrays = {}
    for name, weight in weights.items():
        if name in float_names or tables.get(name) == 32 or not (is_matrix(name, weight) or name in tables):
            stored[name] = weight
            continue
        if not np.isfinite(weight).all():
            raise UserError(f"{name} contains NaN or infinity and cannot be quantized")
        if name in input_scales:
            stored[name], stored[name + SCALE_SUFFIX] = quantize_linear((weight / input_scales[name]).astype(np.float32))
            if (input_scales[name] != 1).any():
                stored[name + INPUT_SCALE_SUFFIX] = input_scales[name]
        elif tables.get(name) == 4 and weight.shape[1] % 2 == 0:
            values, stored[name + SCALE_SUFFIX] = quantize_rows_int4(weight)
            stored[name] = pack_int4(values)
        else:
            stored[name], stored[name + SCALE_SUFFIX] = quantize_rows(weight)
    return stored


def quantize_rows(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """(rows, columns) -> int8 of the same shape and (rows,) scales, max|w| / 127 of each row."""
    scale = np.maximum(np.abs(weight).max(1) / INT8_MAX, TINY).astype(np.float32)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


def quantize_linear(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """The same with scales such that no sum of two neighbors is above 128 steps: it never saturates with uint8 activations.

    Measured on MiniLM: as exact as without that limit, while seven bits for all weights double the error.
    """
    scale = linear_scale(weight)
    values = np.clip(np.rint(weight / scale[:, None]), -INT8_MAX, INT8_MAX).astype(np.int8)
    return _limit_pairs(values), scale


def linear_scale(weight: Floats) -> Floats:
    """(outputs,): the larger of max|w| / 127 and max(|w[2i]| + |w[2i + 1]|) / 128 of each row."""
    size = np.abs(weight)
    pairs = np.pad(size, ((0, 0), (0, size.shape[1] % 2))).reshape(len(size), -1, 2).sum(-1)
    return np.maximum(np.maximum(size.max(1) / INT8_MAX, pairs.max(1) / MAX_PAIR), TINY).astype(np.float32)


def quantize_rows_int4(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """(rows, columns) -> -7 to 7 and (rows,) scales: of several ranges, that with the least squared error of the row."""
    highest = np.maximum(np.abs(weight).max(1), TINY)
    best = np.full(len(weight), np.inf, np.float32)
    values, scales = np.zeros(weight.shape, np.int8), np.ones(len(weight), np.float32)
    for share in CLIPPED:
        scale = (share * highest / INT4_MAX).astype(np.float32)
        rounded = np.clip(np.rint(weight / scale[:, None]), -INT4_MAX, INT4_MAX)
        error = np.square(rounded * scale[:, None] - weight).sum(1)
        is_better = error < best
        best[is_better], scales[is_better], values[is_better] = error[is_better], scale[is_better], rounded[is_better]
    return values, scales


def pack_int4(values: NDArray[np.int8]) -> NDArray[np.uint8]:
    """(rows, columns) of -8 to 7 -> (rows, columns / 2); see `model.folder.unpack_int4`."""
    low, high = np.split((values + 8).astype(np.uint8), 2, axis=1)
    return (low | high << 4).astype(np.uint8)


def smoothing_scale(weight: Floats, channels: ChannelRange) -> Floats:
    """(inputs,): what to multiply the input by, max|w| ** (1 - alpha) / max|x| ** alpha, with geometric mean 1."""
    sizes = np.maximum(channels.highest, -channels.lowest).astype(np.float64), np.abs(weight).max(0).astype(np.float64)
    x, w = (np.maximum(size, max(size.max() * 1e-5, TINY)) for size in sizes)
    factor = x**SMOOTHING_STRENGTH / w ** (1 - SMOOTHING_STRENGTH)
    return (np.exp(np.log(factor).mean()) / factor).astype(np.float32)


class ActivationRange(NamedTuple):
    """Range of the inputs of a layer, after smoothing, that 0 to 255 stand for."""

    low: float
    high: float

    @property
    def step(self) -> float:
        return max((self.high - self.low) / UINT8_MAX, float(TINY))

    @property
    def zero_point(self) -> int:
        return int(np.clip(np.rint(-self.low / self.step), 0, UINT8_MAX))


def _limit_pairs(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Rounding up twice may make a pair of 129: its larger number is then one less."""
    size = np.abs(values.astype(np.int16))
    even, odd = size[:, : values.shape[1] // 2 * 2 : 2], size[:, 1::2]
    rows, pairs = np.nonzero(even + odd > MAX_PAIR)
    columns = 2 * pairs + (odd[rows, pairs] > even[rows, pairs])
    values[rows, columns] -= np.sign(values[rows, columns])
    return values
