"""CRC-32C, the checksum of TensorFlow's files, at a few hundred megabytes a second in numpy alone.

A CRC is linear over GF(2): the first half of a message, moved on by the length of the second and added to it, has the
same CRC as the whole. Halving a million words again and again takes twenty calls of numpy.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
CHUNK = 1 << 22  # words folded together: 16 MB
MASK_DELTA = 0xA282EAD8

UInt32Array = NDArray[np.uint32]


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC of some bytes."""
    view = memoryview(data).cast("B")
    whole = len(view) // 4
    state = 0xFFFFFFFF
    for start in range(0, whole, CHUNK):
        count = min(CHUNK, whole - start)
        words = np.frombuffer(view, "<u4", count, 4 * start).astype(np.uint32)
        words[0] ^= np.uint32(state)
        state = int(_advance(_fold(words), 0)[0])
    for byte in view[4 * whole :]:
        state = state >> 8 ^ int(_byte_table()[(state ^ byte) & 255])
    return state ^ 0xFFFFFFFF


def mask_crc(crc: int) -> int:
    """As TensorFlow stores one beside the bytes it is of: the CRC of bytes that hold CRCs is no good check."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def _fold(words: UInt32Array) -> UInt32Array:
    """One word with the CRC of all of them."""
    levels = (len(words) - 1).bit_length()
    padded = np.zeros(1 << levels, dtype=np.uint32)  # zeros before a message, whose CRC begins at 0, change nothing
    padded[len(padded) - len(words) :] = words
    for level in reversed(range(levels)):
        half = 1 << level
        padded = _advance(padded[:half], level) ^ padded[half:]
    return padded


def _advance(words: UInt32Array, level: int) -> UInt32Array:
    """Each word as it is after 2^level words of zeros."""
    low, high = _advance_tables(level)
    return low[words & 0xFFFF] ^ high[words >> 16]


@cache
def _advance_tables(level: int) -> tuple[UInt32Array, UInt32Array]:
    """What the lower and the upper 16 bits become."""
    columns = _advance_matrix(level)
    return _xor_table(columns[:16]), _xor_table(columns[16:])


@cache
def _advance_matrix(level: int) -> UInt32Array:
    """What each of the 32 bits becomes: a matrix over GF(2), the square of the one before."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if level:
        return _advance(_advance(bits, level - 1), level - 1)
    for _ in range(4):
        bits = bits >> 8 ^ _byte_table()[bits & 255]
    return bits


def _xor_table(columns: UInt32Array) -> UInt32Array:
    """Every sum of them, at the index whose bits say which."""
    sums = np.zeros(1, dtype=np.uint32)
    for column in columns:
        sums = np.concatenate([sums, sums ^ column])
    return sums


@cache
def _byte_table() -> UInt32Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table
