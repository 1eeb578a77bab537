"""Counter-based dice: the only source of randomness in data, keyed by (seed, epoch, sample, ...) and never advanced.

Each value is a hash of its key and its counters (the finaliser of SplitMix64, a bijection that passes BigCrush), so
any of them can be drawn at any time, in any order, by any process, for a whole array at once.
"""

import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import BadInput

Bits = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def bits(seed: int, purpose: str, *counters: ArrayLike) -> Bits:
    """64 random bits for each element of the counters, broadcast together: the same whoever asks, whenever.

    A seed is any whole number of 64 bits, signed or not; -1 is the same as 2**64 - 1.
    """
    if not -(2**63) <= seed < 2**64:
        raise BadInput(f"seed = {seed} is too large; take one of 64 bits, from {-(2**63)} to {2**64 - 1}")
    with np.errstate(over="ignore"):
        state: Bits = _mixed(np.asarray(seed % 2**64, np.uint64) + _STEP)
        for counter in (zlib.crc32(purpose.encode()), *counters):
            state = _mixed(state ^ _mixed(np.asarray(counter).astype(np.uint64) * _STEP + _STEP))
    return state


def uniform(dice: Bits) -> NDArray[np.float64]:
    """Numbers in [0, 1)."""
    return (dice >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(dice: Bits, limit: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers from 0 up to, not including, `limit`."""
    return (uniform(dice) * np.asarray(limit)).astype(np.int64)


def shuffled(count: int, seed: int, purpose: str, *counters: int) -> NDArray[np.int64]:
    """The numbers 0..count-1 in random order."""
    return np.argsort(bits(seed, purpose, *counters, np.arange(count)), kind="stable")


def _mixed(x: Bits) -> Bits:
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        return x ^ (x >> np.uint64(31))
