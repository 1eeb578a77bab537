"""The little of protocol buffers that TensorFlow's index needs: a message as its fields, one after another."""

from collections.abc import Iterator

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
