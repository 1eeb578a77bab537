"""Arrays in files: memory maps, .npy, and the headers of safetensors."""

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, explain_reason
from .files import open_regular, require_regular
from .values import as_object, parse_json

MAX_HEADER_BYTES = 100_000_000  # as in safetensors
# Bits of an element by dtype in safetensors headers.
_TENSOR_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16,
    "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class TensorHeader(NamedTuple):
    """A tensor of a safetensors file: dtype by its name there, and shape."""

    dtype: str
    shape: tuple[int, ...]


def map_array(path: Path, dtype: Any) -> NDArray[Any]:
    """A file of elements of one dtype, as a read-only memory map."""
    size, dtype = require_regular(path).stat().st_size, np.dtype(dtype)
    if size % dtype.itemsize:
        raise UserError(f"{path} is damaged: its {size:,} bytes are no whole number of elements of {dtype.itemsize} bytes")
    return np.memmap(path, dtype, "r") if size else np.zeros(0, dtype)


def open_npy(path: Path) -> NDArray[Any]:
    """The array of a .npy file as a read-only memory map, so that its shape and dtype can be checked before it is read."""
    with open_regular(path) as file:
        try:
            version = np.lib.format.read_magic(file)
            read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read_header(file)
        except Exception as error:  # the header is a Python literal, which may be wrong in many ways
            raise UserError(f"{path} cannot be read as .npy: {error}") from None
        offset, size = file.tell(), os.fstat(file.fileno()).st_size
    if dtype.hasobject or not dtype.itemsize:
        raise UserError(f"{path} has elements of dtype {dtype}; only numbers are read")
    if offset + math.prod(shape) * dtype.itemsize != size or any(length < 0 for length in shape):
        raise UserError(f"{path} is damaged: its header says {dtype} {list(shape)}, which does not fit its {size:,} bytes")
    if not math.prod(shape):
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if is_fortran else "C")


def read_tensor_headers(path: Path) -> dict[str, TensorHeader]:
    """Dtypes and shapes of the tensors of a safetensors file, whose sizes and offsets must agree with the size of the file."""
    try:
        with open_regular(path) as file:
            size, header_size = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
            data = file.read(header_size) if header_size <= min(size, MAX_HEADER_BYTES) else b""
    except OSError as error:
        raise UserError(f"{path} cannot be read: {explain_reason(error)}") from None
    if size < 8 or len(data) < header_size:
        raise UserError(
            f"{path} cannot be read: its {size:,} bytes have no whole header; it is truncated, or no safetensors file"
        )
    header = as_object(parse_json(data, f"the header of {path}"), path)
    header.pop("__metadata__", None)
    headers, end = dict[str, TensorHeader](), 0
    for name, entry in sorted(header.items(), key=lambda item: _first_offset(item[1])):
        fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
        dtype, shape, offsets = fields.get("dtype"), fields.get("shape", ()), fields.get("data_offsets", ())
        if not (
            _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and isinstance(dtype, str) and dtype in _TENSOR_BITS
        ):
            raise UserError(f"{path} cannot be read: its header has no dtype, shape and offsets of {name!r} that are known")
        if offsets[0] != end or (offsets[1] - end) * 8 != math.prod(shape) * _TENSOR_BITS[dtype]:
            raise UserError(f"{path} cannot be read: {name!r} of shape {shape} does not fit its offsets {offsets}")
        headers[name], end = TensorHeader(dtype, tuple(shape)), offsets[1]
    if 8 + header_size + end != size:
        raise UserError(
            f"{path} cannot be read: it has {size:,} bytes instead of {8 + header_size + end:,}; copy or download it again"
        )
    return headers


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _first_offset(entry: Any) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    return offsets[0] if _are_sizes(offsets) and offsets else 0
