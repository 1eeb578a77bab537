"""The pieces that fastText makes of a word: its n-grams of characters between < and >, each hashed into a bucket."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

OFFSET, PRIME = np.uint32(2166136261), np.uint32(16777619)  # of FNV-1a


def grams(words: Sequence[str], least: int, most: int, buckets: int) -> tuple[Ints, Ints]:
    """Buckets of the n-grams of all words, one word after another, and where those of each begin (words + 1,).

    As fastText counts them: n is in characters, the hash is of bytes, and a bracket alone is no n-gram.
    """
    spelt = [f"<{word}>".encode() for word in words]
    sizes = np.fromiter(map(len, spelt), np.int64, len(spelt))
    data = np.frombuffer(b"".join(spelt) + b"\0", np.uint8)
    owner, bucket = _found(data, sizes, least, most, buckets)
    order = np.argsort(owner, kind="stable")
    starts = np.append(0, np.bincount(owner, minlength=len(spelt)).cumsum())
    return bucket[order], starts


def _found(data: NDArray[np.uint8], sizes: Ints, least: int, most: int, buckets: int) -> tuple[Ints, Ints]:
    """Word and bucket of each n-gram: from every character at once, a byte further at a time."""
    ends = sizes.cumsum()
    begins = (data & 0xC0) != 0x80  # a byte that begins a character of UTF-8, as the one behind the last does
    first = np.flatnonzero(begins[:-1])
    owner = np.searchsorted(ends, first, side="right")
    at, length = first.copy(), np.zeros(len(first), np.int64)
    state = np.full(len(first), OFFSET)
    owners, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(first):
        with np.errstate(over="ignore"):
            state = (state ^ data[at].view(np.int8).astype(np.uint32)) * PRIME  # signed bytes, as fastText has them
        at = at + 1
        over = at == ends[owner]
        length = length + (begins[at] | over)
        whole = (begins[at] | over) & (length >= least)
        whole &= (length > 1) | ~(over | (first == (ends - sizes)[owner]))
        owners.append(owner[whole])
        found.append((state[whole] % np.uint32(buckets)).astype(np.int64))
        on = ~over & ~(begins[at] & (length == most))
        first, owner, at, length, state = first[on], owner[on], at[on], length[on], state[on]
    return np.concatenate(owners), np.concatenate(found)
