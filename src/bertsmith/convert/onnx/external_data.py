"""Weights of a graph as external data in safetensors files: stored once, for torch and for every engine.

A safetensors file is 8 bytes with the size of its header, the header (JSON), and the tensors one after another, so that each of
them is the `length` bytes at an `offset` of the file, as ONNX's external data are.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...model.folder import list_weight_files

if TYPE_CHECKING:
    import onnx


class Location(msgspec.Struct, frozen=True):
    """Where a tensor is: `length` bytes at `offset` of a file."""

    file: str
    offset: int
    length: int


def find_weights(folder: Path) -> dict[str, Location]:
    """Where each weight of a checkpoint folder is, by its name."""
    locations = dict[str, Location]()
    for path in list_weight_files(folder):
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(header_size))
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = entry["data_offsets"]
                locations[name] = Location(path.name, 8 + header_size + start, stop - start)
    return locations


def set_external_data(proto: "onnx.ModelProto", locations: dict[str, Location]) -> None:
    """Point the graph's weights, which are external data already, to these places."""
    import onnx

    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place, entry = locations[tensor.name], onnx.StringStringEntryProto
            values = {"location": place.file, "offset": str(place.offset), "length": str(place.length)}
            del tensor.external_data[:]
            tensor.external_data.extend(entry(key=key, value=value) for key, value in values.items())
