"""Vectors that have one for any word: those never seen are made of their n-grams (fastText)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..text.grams import grams
from .vectors import Matrix, Vectors


class Spelt(Vectors):
    """`buckets` (buckets, width) are the rows of n-grams of `least` to `most` characters, by their hash.

    `clean` is what the tokenizer does to a text before it cuts it: a word is looked up, and spelt, as it was learnt.
    """

    def __init__(
        self, words: Sequence[str], matrix: NDArray[Any], buckets: NDArray[Any], least: int, most: int,
        clean: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        super().__init__(words, matrix)
        self.buckets, self.least, self.most = np.asarray(buckets, np.float32), least, most
        self.clean = clean

    def row(self, word: str) -> int | None:
        as_written = super().row(word)
        return super().row(self._cleaned(word)) if as_written is None else as_written

    def knows(self, word: str) -> bool:
        return super().knows(word) or len(self._grams(word)) > 0

    def vector(self, word: str) -> Matrix:
        """(width,): its row, or for a word without one the mean of its n-grams."""
        rows = () if self.row(word) is not None else self._grams(word)
        return np.asarray(self.buckets[rows].mean(0), np.float32) if len(rows) else super().vector(word)

    def _grams(self, word: str) -> NDArray[np.int64]:
        return grams([self._cleaned(word)], self.least, self.most, len(self.buckets))[0]

    def _cleaned(self, word: str) -> str:
        return "".join(self.clean(word).split())  # some set spaces around every ideograph
