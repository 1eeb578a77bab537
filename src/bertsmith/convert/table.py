"""A sorted table as LevelDB and TensorFlow write it: blocks of keys and values, an index of blocks, a footer."""

from collections.abc import Iterator

from .crc import crc32c, masked
from .protobuf import Malformed, varint

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
