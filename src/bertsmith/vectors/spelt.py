"""Vectors that have one for any word: those never seen are made of their n-grams (fastText)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..text.grams import grams
from .vectors import Matrix, Vectors


class Spelt(Vectors):
    """`buckets` (buckets, width) are the rows of n-grams of `least` to `most` characters, by their hash."""

    def __init__(self, words: Sequence[str], matrix: NDArray[Any], buckets: NDArray[Any], least: int, most: int) -> None:
        super().__init__(words, matrix)
        self.buckets, self.least, self.most = np.asarray(buckets, np.float32), least, most

    def knows(self, word: str) -> bool:
        return super().knows(word) or len(self._rows(word)) > 0

    def vector(self, word: str) -> Matrix:
        """(width,): its row, or for a word without one the mean of its n-grams."""
        rows = () if word in self.index else self._rows(word)
        return np.asarray(self.buckets[rows].mean(0), np.float32) if len(rows) else super().vector(word)

    def _rows(self, word: str) -> NDArray[np.int64]:
        return grams([word], self.least, self.most, len(self.buckets))[0]
