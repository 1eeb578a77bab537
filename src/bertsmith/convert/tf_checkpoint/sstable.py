"""The little of protocol buffers that TensorFlow's index needs: a message as its fields, one after another."""

from collections.abc import Iterator

from .crc32c import crc32c, masked

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """Bytes that are not what the format says; whoever reads the file says which file it is."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, seven to a byte, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            if value >> 64:
                break
            return value, at
    raise Malformed(f"no number at byte {at:,}")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field; a fixed number comes as a number, a text or a message as its bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = varint(data, at)
            yield number, value
            continue
        if wire == BYTES:
            size, at = varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise Malformed(f"field {number} is of the unknown wire type {wire}")
        piece = data[at : at + size]
        if len(piece) < size:
            raise Malformed(f"field {number} is cut off")
        at += size
        yield number, piece if wire == BYTES else int.from_bytes(piece, "little")


def numbers(data: bytes) -> dict[int, int]:
    """The fields of a message that are numbers; the last of each, as the format wants it."""
    return {number: value for number, value in fields(data) if isinstance(value, int)}


def signed(value: int) -> int:
    """An int64 as it was, from the 64 bits that stand for it."""
    return value - (1 << 64) if value >> 63 else value


MAGIC = 0xDB4775248B80FB57
FOOTER = 48  # bytes: two handles, padding, the magic number
TRAILER = 5  # bytes behind each block: how it is compressed, and the checksum
LONGEST = 4096  # bytes of a key: names of tensors are shorter, and hostile ones would fill the memory


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and its value in order, each block checked before it is read."""
    if len(data) < FOOTER or int.from_bytes(data[-8:], "little") != MAGIC:
        raise Malformed("it does not end as an index of TensorFlow does (magic number db4775248b80fb57)")
    footer = data[-FOOTER:]
    _, at = _handle(footer, 0)  # of a block of metadata, which these tables leave empty
    index, _ = _handle(footer, at)
    last, end = b"", 0
    for _, value in _pairs(_block(data, *index)):
        (offset, size), _ = _handle(value, 0)
        if offset < end:
            raise Malformed(f"its blocks overlap at byte {offset:,}")
        end = offset + size + TRAILER
        for key, value in _pairs(_block(data, offset, size)):
            if last and key <= last:
                raise Malformed(f"its keys are not in order at {key[:80]!r}")
            last = key
            yield key, value


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Where a block begins and how long it is; and where this was said."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(data: bytes, offset: int, size: int) -> bytes:
    block = data[offset : offset + size + TRAILER]
    if len(block) < size + TRAILER:
        raise Malformed(f"the block at byte {offset:,} is cut off: {len(block):,} bytes of {size + TRAILER:,}")
    if int.from_bytes(block[-4:], "little") != masked(crc32c(block[:-4])):
        raise Malformed(f"the block at byte {offset:,} is damaged (its checksum is wrong)")
    if block[size]:
        raise Malformed(f"the block at byte {offset:,} is compressed (kind {block[size]}), which TensorFlow's own are not")
    return block[:size]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys are written as what they share with the one before, and the rest."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise Malformed(f"a block of {len(block):,} bytes cannot hold {restarts:,} restarts")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        fresh, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or at + fresh + size > end or shared + fresh > LONGEST:
            raise Malformed(f"the entry after {key[:80]!r} is cut off or too long")
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + size]
        at += fresh + size
