"""Word marks on disk: a bit a token, written and read without ever holding all of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class MarkWriter:
    """Appends flags to a file as bits; up to seven wait in `spare` until their byte is full."""

    def __init__(self, file: Any, spare: bytes = b"") -> None:
        self.file, self.spare = file, spare

    def add(self, flags: NDArray[np.bool_]) -> None:
        flat = np.concatenate([np.frombuffer(self.spare, np.uint8), flags.astype(np.uint8)])
        full = len(flat) // 8 * 8
        self.file.write(np.packbits(flat[:full]).tobytes())
        self.spare = flat[full:].tobytes()

    def finish(self) -> None:
        self.file.write(np.packbits(np.frombuffer(self.spare, np.uint8)).tobytes())
        self.spare = b""


def between(marks: NDArray[np.uint8], first: int, last: int) -> NDArray[np.bool_]:
    """The flags of tokens first..last-1."""
    flat = np.unpackbits(marks[first >> 3 : (last + 7) >> 3])
    return flat[first & 7 : (first & 7) + last - first].astype(bool)


def at(marks: NDArray[np.uint8], where: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The flags of the tokens at these positions."""
    return (marks[where >> 3] >> (7 - (where & 7)).astype(np.uint8) & 1).astype(bool)
