"""Weights of an ONNX graph that is stored without them: their names, and the graph with them, without the package onnx.

An ONNX file is a protocol buffer: fields of a number and a value, nested. A graph stored without weights has, for each of them,
an initializer with name and shape whose data is external.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError

MAX_GRAPH_BYTES = 64 << 20  # of a graph without weights: that of BERT-large has 1 MB
# numbers of fields in onnx.proto
MODEL_GRAPH, GRAPH_INITIALIZER = 7, 5
TENSOR_DIMS, TENSOR_DATA_TYPE, TENSOR_NAME, TENSOR_RAW_DATA, TENSOR_DATA_LOCATION = 1, 2, 8, 9, 14
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of values
DATA_TYPES = {1: np.dtype("<f4"), 2: np.dtype("u1"), 3: np.dtype("i1"), 7: np.dtype("<i8")}  # float, uint8, int8, int64


class Field(NamedTuple):
    """One field of a message: its number, its value (an integer or bytes), and all its bytes."""

    number: int
    value: Any
    encoded: memoryview


def read_weight_names(model: bytes) -> list[str]:
    """Names of the initializers whose data is external."""
    return [tensor.name for tensor in _iter_initializers(model) if tensor.is_external]


def check_weights(model: bytes, weights: Mapping[str, NDArray[Any]]) -> None:
    """Raises a UserError unless the weights have every external initializer in its shape and type."""
    for tensor in _iter_initializers(model):
        if tensor.is_external:
            tensor.find_data(weights)


def insert_weights(model: bytes, weights: Mapping[str, NDArray[Any]]) -> bytes:
    """The model with the data of these arrays in its initializers."""
    parts = list[bytes | memoryview]()
    for field in _iter_fields(memoryview(model)):
        if field.number != MODEL_GRAPH:
            parts.append(field.encoded)
            continue
        graph = list[bytes | memoryview]()
        for part in _iter_fields(field.value):
            tensor = _Initializer.parse(part.value) if part.number == GRAPH_INITIALIZER else None
            is_missing = tensor is not None and tensor.is_external
            graph += _encode(GRAPH_INITIALIZER, tensor.with_data(weights)) if is_missing and tensor else [part.encoded]
        parts += _encode(MODEL_GRAPH, graph)
    return b"".join(parts)


class _Initializer(NamedTuple):
    name: str
    shape: tuple[int, ...]
    data_type: int
    is_external: bool

    @classmethod
    def parse(cls, message: memoryview) -> "_Initializer":
        name, shape, data_type, location = "", list[int](), 0, 0
        for field in _iter_fields(message):
            if field.number == TENSOR_NAME:
                name = bytes(field.value).decode()
            elif field.number == TENSOR_DIMS:
                shape += [field.value] if isinstance(field.value, int) else _read_packed(field.value)
            elif field.number == TENSOR_DATA_TYPE:
                data_type = field.value
            elif field.number == TENSOR_DATA_LOCATION:
                location = field.value
        return cls(name, tuple(shape), data_type, location == 1)

    def find_data(self, weights: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Its array; a UserError if there is none of its shape and type."""
        array = weights.get(self.name)
        if array is None or array.shape != self.shape or array.dtype != DATA_TYPES.get(self.data_type):
            found = "no such tensor" if array is None else f"{array.dtype} {list(array.shape)}"
            raise UserError(f"the graph does not match the weights: {self.name} has shape {list(self.shape)} there, and the "
                            f"weights have {found}; export the model again")  # fmt: skip
        return array

    def with_data(self, weights: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
        """The message with its array."""
        data = np.ascontiguousarray(self.find_data(weights)).data.cast("B")
        dims = [part for size in self.shape for part in (_key(TENSOR_DIMS, VARINT), _varint(size))]
        data_type = [_key(TENSOR_DATA_TYPE, VARINT), _varint(self.data_type)]
        return [*dims, *data_type, *_encode(TENSOR_NAME, [self.name.encode()]), *_encode(TENSOR_RAW_DATA, [data])]


def _iter_initializers(model: bytes) -> Iterator[_Initializer]:
    for field in _iter_fields(memoryview(model)):
        if field.number == MODEL_GRAPH:
            yield from (
                _Initializer.parse(part.value) for part in _iter_fields(field.value) if part.number == GRAPH_INITIALIZER
            )


def _iter_fields(message: memoryview) -> Iterator[Field]:
    position = 0
    while position < len(message):
        start = position
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        value: Any
        if kind == VARINT:
            value, position = _read_varint(message, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
            value, position = message[position : position + size], position + size
        elif kind == BYTES:
            size, position = _read_varint(message, position)
            value, position = message[position : position + size], position + size
        else:
            raise UserError(f"the graph is not an ONNX file: a field of kind {kind}")
        if position > len(message):
            raise UserError("the graph is not a whole ONNX file: it ends within a field")
        yield Field(number, value, message[start:position])


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """The number at a position, seven bits a byte, and the position behind it."""
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise UserError("the graph is not a whole ONNX file: it ends within a number")
        byte = message[position]
        value, position, shift = value | (byte & 0x7F) << shift, position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _read_packed(values: memoryview) -> Iterator[int]:
    position = 0
    while position < len(values):
        value, position = _read_varint(values, position)
        yield value


def _encode(number: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """A field of bytes: key, size and the parts."""
    return [_key(number, BYTES), _varint(sum(len(part) for part in parts)), *parts]


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
