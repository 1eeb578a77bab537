"""The little of protocol buffers that TensorFlow's index needs: a message as its fields, one after another."""

from collections.abc import Iterator

from .crc32c import crc32c, mask_crc

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5


class FormatError(ValueError):
    """Bytes that are not what the format says; whoever reads the file says which file it is."""


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """A number of up to 64 bits, seven to a byte, and where it ends."""
    value = shift = 0
    while pos < len(data) and shift < 70:
        byte = data[pos]
        value, shift, pos = value | (byte & 127) << shift, shift + 7, pos + 1
        if byte < 128:
            if value >> 64:
                break
            return value, pos
    raise FormatError(f"no number at byte {pos:,}")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field; a fixed number comes as a number, a text or a message as its bytes."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        if wire == LENGTH_DELIMITED:
            size, at = read_varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise FormatError(f"field {number} is of the unknown wire type {wire}")
        piece = data[at : at + size]
        if len(piece) < size:
            raise FormatError(f"field {number} is cut off")
        at += size
        yield number, piece if wire == LENGTH_DELIMITED else int.from_bytes(piece, "little")


def read_int_fields(data: bytes) -> dict[int, int]:
    """The fields of a message that are numbers; the last of each, as the format wants it."""
    return {number: value for number, value in read_fields(data) if isinstance(value, int)}


def to_int64(value: int) -> int:
    """An int64 as it was, from the 64 bits that stand for it."""
    return value - (1 << 64) if value >> 63 else value


MAGIC = 0xDB4775248B80FB57
FOOTER_SIZE = 48  # bytes: two handles, padding, the magic number
TRAILER_SIZE = 5  # bytes behind each block: how it is compressed, and the checksum
MAX_KEY_LENGTH = 4096  # bytes of a key: names of tensors are shorter, and hostile ones would fill the memory


def read_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and its value in order, each block checked before it is read."""
    if len(data) < FOOTER_SIZE or int.from_bytes(data[-8:], "little") != MAGIC:
        raise FormatError("it does not end as an index of TensorFlow does (magic number db4775248b80fb57)")
    footer = data[-FOOTER_SIZE:]
    _, at = _read_handle(footer, 0)  # of a block of metadata, which these tables leave empty
    index, _ = _read_handle(footer, at)
    last, end = b"", 0
    for _, value in _read_pairs(_read_block(data, *index)):
        (offset, size), _ = _read_handle(value, 0)
        if offset < end:
            raise FormatError(f"its blocks overlap at byte {offset:,}")
        end = offset + size + TRAILER_SIZE
        for key, value in _read_pairs(_read_block(data, offset, size)):
            if last and key <= last:
                raise FormatError(f"its keys are not in order at {key[:80]!r}")
            last = key
            yield key, value


def _read_handle(data: bytes, pos: int) -> tuple[tuple[int, int], int]:
    """Where a block begins and how long it is; and where this was said."""
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
        raise FormatError(f"the block at byte {offset:,} is compressed (kind {block[size]}), which TensorFlow's own are not")
    return block[:size]


def _read_pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys are written as what they share with the one before, and the rest."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise FormatError(f"a block of {len(block):,} bytes cannot hold {restarts:,} restarts")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        size, at = read_varint(block, at)
        if shared > len(key) or at + fresh + size > end or shared + fresh > MAX_KEY_LENGTH:
            raise FormatError(f"the entry after {key[:80]!r} is cut off or too long")
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + size]
        at += fresh + size
