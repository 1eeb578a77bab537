"""Reader of TensorFlow's .index files: a LevelDB-style sorted string table whose values are protocol buffers.

`read_entries` yields the key-value pairs of a table, `read_fields` the fields of a protobuf message.
"""

from collections.abc import Iterator

from .crc32c import crc32c, mask_crc

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5  # wire types of protobuf
MAGIC = 0xDB4775248B80FB57
FOOTER_SIZE = 48  # bytes: two block handles, padding, the magic number
TRAILER_SIZE = 5  # bytes after each block: compression type and masked CRC
MAX_KEY_LENGTH = 4096  # bytes; tensor names are shorter, and a hostile file could exhaust the memory


class FormatError(ValueError):
    """Malformed bytes; the caller adds the name of the file."""


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """A base-128 varint of up to 64 bits, and the position after it."""
    value = shift = 0
    while pos < len(data) and shift < 70:
        byte = data[pos]
        value, shift, pos = value | (byte & 127) << shift, shift + 7, pos + 1
        if byte < 128:
            if value >> 64:
                break
            return value, pos
    raise FormatError(f"no varint at byte {pos:,}")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of every field: int for varint and fixed-width fields, bytes for length-delimited ones."""
    pos = 0
    while pos < len(data):
        key, pos = read_varint(data, pos)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, pos = read_varint(data, pos)
            yield number, value
            continue
        if wire_type == LENGTH_DELIMITED:
            size, pos = read_varint(data, pos)
        elif wire_type in (FIXED32, FIXED64):
            size = 4 if wire_type == FIXED32 else 8
        else:
            raise FormatError(f"field {number} has the unknown wire type {wire_type}")
        payload = data[pos : pos + size]
        if len(payload) < size:
            raise FormatError(f"field {number} is cut off")
        pos += size
        yield number, payload if wire_type == LENGTH_DELIMITED else int.from_bytes(payload, "little")


def read_int_fields(data: bytes) -> dict[int, int]:
    """The integer fields of a message by number; of repeated ones the last, as protobuf specifies."""
    return {number: value for number, value in read_fields(data) if isinstance(value, int)}


def to_int64(value: int) -> int:
    """Two's complement: an int64 from its 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def read_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key-value pairs of a table in key order; the checksum of each block is verified first."""
    if len(data) < FOOTER_SIZE or int.from_bytes(data[-8:], "little") != MAGIC:
        raise FormatError("it has no footer of a TensorFlow index (magic number db4775248b80fb57)")
    footer = data[-FOOTER_SIZE:]
    _, pos = _read_handle(footer, 0)  # the metaindex block, which is empty in these tables
    index_handle, _ = _read_handle(footer, pos)
    last_key, end = b"", 0
    for _, value in _read_pairs(_read_block(data, *index_handle)):
        (offset, size), _ = _read_handle(value, 0)
        if offset < end:
            raise FormatError(f"its blocks overlap at byte {offset:,}")
        end = offset + size + TRAILER_SIZE
        for key, value in _read_pairs(_read_block(data, offset, size)):
            if last_key and key <= last_key:
                raise FormatError(f"its keys are not in order at {key[:80]!r}")
            last_key = key
            yield key, value


def _read_handle(data: bytes, pos: int) -> tuple[tuple[int, int], int]:
    """A block handle (offset, size), and the position after it."""
    offset, pos = read_varint(data, pos)
    size, pos = read_varint(data, pos)
    return (offset, size), pos


def _read_block(data: bytes, offset: int, size: int) -> bytes:
    block = data[offset : offset + size + TRAILER_SIZE]
    if len(block) < size + TRAILER_SIZE:
        raise FormatError(f"the block at byte {offset:,} is cut off: {len(block):,} bytes of {size + TRAILER_SIZE:,}")
    if int.from_bytes(block[-4:], "little") != mask_crc(crc32c(block[:-4])):
        raise FormatError(f"the block at byte {offset:,} is damaged (its checksum is wrong)")
    if block[size]:
        raise FormatError(f"the block at byte {offset:,} is compressed (type {block[size]}), which is not supported")
    return block[:size]


def _read_pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key-value pairs of a block; keys are prefix-compressed against the previous key."""
    num_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * num_restarts
    if end < 0:
        raise FormatError(f"a block of {len(block):,} bytes is too small for {num_restarts:,} restarts")
    pos, key = 0, b""
    while pos < end:
        shared, pos = read_varint(block, pos)
        unshared, pos = read_varint(block, pos)
        value_size, pos = read_varint(block, pos)
        if shared > len(key) or pos + unshared + value_size > end or shared + unshared > MAX_KEY_LENGTH:
            raise FormatError(f"the entry after {key[:80]!r} is cut off or too long")
        key = key[:shared] + block[pos : pos + unshared]
        yield key, block[pos + unshared : pos + unshared + value_size]
        pos += unshared + value_size
