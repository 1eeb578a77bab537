"""Pieces or whole words, chosen one by one until a share of the tokens is hidden."""

from typing import Annotated, ClassVar

import numpy as np

from ...config import Chance, Variant
from .base import Ints, Words


class OneByOne(Variant, frozen=True):
    """Units chosen in random order."""

    def units(self, words: Words) -> Ints:
        """Words in random order while they fit the quota; the one that passes it is taken by the chance that evens it out."""
        nth = words.nth
        order = np.lexsort([words.dice("order", words.sample, nth), words.sample])
        sizes, sample = words.sizes[order], words.sample[order]
        ends = sizes.cumsum()
        before = ends - sizes
        before = before - before[np.searchsorted(sample, sample, side="left")]
        left = words.quota[sample] - before
        taken = (left >= sizes) | ((left > 0) & (words.dice("last", sample, 0) * sizes < left))
        unit = np.full(len(order), -1)
        unit[order[taken]] = nth[order[taken]]
        return unit


class WholeWords(OneByOne, frozen=True):
    """Whole words: all pieces of a word are hidden together, Chinese words where the corpus marks them."""

    by_word: ClassVar[bool] = True
    singly: Annotated[
        Chance, "share of the samples in which pieces are hidden one by one; without any, half a word is a riddle"
    ] = 0.0


class Pieces(OneByOne, frozen=True):
    """Single pieces, as BERT was first trained."""

    by_word: ClassVar[bool] = False
    singly: ClassVar[float] = 0.0
