"""Reference writer of TensorFlow checkpoint bundles, from the description of the format."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

DATA_TYPES = {"float32": 1, "float64": 2, "int64": 9, "float16": 19}
Change = Callable[[bytes], bytes]
unchanged: Change = lambda data: data


def masked_crc_bitwise(data: bytes) -> int:
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


def int_field(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def bytes_field(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor_entry(array: np.ndarray, offset: int, code: int, shard: int = 0) -> bytes:
    data, shape = array.tobytes(), b"".join(bytes_field(2, int_field(1, size)) for size in array.shape)
    location = int_field(3, shard) + int_field(4, offset) + int_field(5, len(data))
    return (
        int_field(1, code) + bytes_field(2, shape) + location + varint(6 << 3 | 5) + struct.pack("<I", masked_crc_bitwise(data))
    )


def write_block(pairs: list[tuple[bytes, bytes]], change: Change = unchanged, compression: int = 0) -> bytes:
    """A block of prefix-compressed keys with a restart every four entries, compression byte and CRC.

    `change` mutates the bytes before the CRC is computed.
    """
    out, restarts, previous_key = bytearray(), [], b""
    for index, (key, value) in enumerate(pairs):
        shared = 0
        if index % 4 == 0:
            restarts.append(len(out))
        else:
            shared = next(
                (i for i, (a, b) in enumerate(zip(key, previous_key, strict=False)) if a != b), min(len(key), len(previous_key))
            )
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous_key = key
    body = bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    body = change(body) + bytes([compression])
    return body + struct.pack("<I", masked_crc_bitwise(body))


def write_table(
    pairs: list[tuple[bytes, bytes]], change: Change = unchanged, block_size: int = 7, compression: int = 0
) -> bytes:
    out, index = bytearray(), []
    for start in range(0, len(pairs), block_size):
        block_pairs = pairs[start : start + block_size]
        data = write_block(block_pairs, change, compression)
        index.append((block_pairs[-1][0], varint(len(out)) + varint(len(data) - 5)))
        out += data
    handles = b""
    for pairs_of_block in ([], index):
        data = write_block(pairs_of_block)
        handles += varint(len(out)) + varint(len(data) - 5)
        out += data
    return bytes(out) + handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_bundle(
    prefix: Path, arrays: dict[str, np.ndarray], shards: int = 1, change: Change = unchanged, compression: int = 0
) -> None:
    """Write .index and .data files; tensors go to the shards in turn, and uint16 is written as bfloat16."""
    data, pairs = [bytearray() for _ in range(shards)], []
    for i, name in enumerate(sorted(arrays)):
        array, shard = arrays[name], i % shards
        code = 14 if array.dtype == np.uint16 else DATA_TYPES[array.dtype.name]
        pairs.append((name.encode(), tensor_entry(array, len(data[shard]), code, shard)))
        data[shard] += array.tobytes()
    header = int_field(1, shards) + bytes_field(3, int_field(1, 1))
    prefix.with_name(prefix.name + ".index").write_bytes(write_table([(b"", header), *pairs], change, compression=compression))
    for shard, contents in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(bytes(contents))
