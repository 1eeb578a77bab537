"""A writer of TensorFlow's checkpoint bundles, from the description of the format, slow and plain."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

CODES = {"float32": 1, "float64": 2, "int64": 9, "float16": 19}
Change = Callable[[bytes], bytes]
same: Change = lambda data: data


def crc(data: bytes) -> int:
    """CRC-32C bit by bit, masked as TensorFlow stores it."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    state ^= 0xFFFFFFFF
    return ((state >> 15 | state << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def entry(array: np.ndarray, offset: int, code: int, shard: int = 0) -> bytes:
    data, shape = array.tobytes(), b"".join(message(2, number(1, size)) for size in array.shape)
    place = number(3, shard) + number(4, offset) + number(5, len(data))
    return number(1, code) + message(2, shape) + place + varint(6 << 3 | 5) + struct.pack("<I", crc(data))


def block(pairs: list[tuple[bytes, bytes]], change: Change = same, compression: int = 0) -> bytes:
    """Keys share what they can with the one before, and are whole again at every fourth."""
    out, restarts, last = bytearray(), [], b""
    for at, (key, value) in enumerate(pairs):
        shared = 0
        if at % 4 == 0:
            restarts.append(len(out))
        else:
            shared = next((i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    body = bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    body = change(body) + bytes([compression])
    return body + struct.pack("<I", crc(body))


def table(pairs: list[tuple[bytes, bytes]], change: Change = same, each: int = 7, compression: int = 0) -> bytes:
    out, index = bytearray(), []
    for start in range(0, len(pairs), each):
        some = pairs[start : start + each]
        written = block(some, change, compression)
        index.append((some[-1][0], varint(len(out)) + varint(len(written) - 5)))
        out += written
    handles = b""
    for pairs_of in ([], index):
        written = block(pairs_of)
        handles += varint(len(out)) + varint(len(written) - 5)
        out += written
    return bytes(out) + handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_bundle(
    prefix: Path, arrays: dict[str, np.ndarray], shards: int = 1, change: Change = same, compression: int = 0
) -> None:
    """Tensors go to the shards in turn; bfloat16 is written as uint16 under a name that ends so."""
    data, pairs = [bytearray() for _ in range(shards)], []
    for at, name in enumerate(sorted(arrays)):
        array, shard = arrays[name], at % shards
        code = 14 if array.dtype == np.uint16 else CODES[array.dtype.name]
        pairs.append((name.encode(), entry(array, len(data[shard]), code, shard)))
        data[shard] += array.tobytes()
    header = number(1, shards) + message(3, number(1, 1))
    prefix.with_name(prefix.name + ".index").write_bytes(table([(b"", header), *pairs], change, compression=compression))
    for shard, held in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(bytes(held))
