"""Hiding: some units of a batch are chosen, and each is masked, swapped or left as it is, whole (80/10/10)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...random import below, bits, uniform

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Words:
    """The words of a batch that may be hidden, in order: each a run of tokens within one sample."""

    starts: Ints  # (words,): positions in the batch
    sizes: Ints  # (words,): tokens of each
    sample: Ints  # (words,): which sample of the batch
    begins: Ints  # (samples,): where each sample begins in the batch
    names: Ints  # (samples,): what the dice call them
    quota: NDArray[np.float64]  # (samples,): tokens to hide in each; a fraction is a chance
    seed: int
    epoch: int

    def dice(self, purpose: str, sample: Ints, nth: Ints | int) -> NDArray[np.float64]:
        return uniform(bits(self.seed, "mask " + purpose, self.epoch, self.names[sample], nth))

    @property
    def nth(self) -> Ints:
        """(words,): the number of each within its sample."""
        return np.arange(len(self.starts)) - np.searchsorted(self.sample, self.sample, side="left")


class Masks(Protocol):
    def units(self, words: Words) -> Ints:
        """(words,): the number of the unit each word is hidden with, -1 for words that stay."""
        ...


@dataclass(frozen=True)
class Masked:
    shown: Ints  # (tokens,): what the model sees
    where: Ints  # (targets,): positions it is asked about, masked, swapped and untouched alike
    answers: Ints  # (targets,): what stood there


def hidden(ids: Ints, words: Words, unit: Ints, mask: int, ordinary: Ints) -> Masked:
    """Each unit as one: all its tokens masked (80 %), or swapped for random ones (10 %), or left (10 %)."""
    chosen = unit >= 0
    sizes, starts, sample = words.sizes[chosen], words.starts[chosen], words.sample[chosen]
    where = np.repeat(starts - sizes.cumsum() + sizes, sizes) + np.arange(sizes.sum())
    fate = np.repeat(words.dice("fate", sample, unit[chosen]), sizes)
    owner = np.repeat(sample, sizes)
    swap = bits(words.seed, "mask swap", words.epoch, words.names[owner], where - words.begins[owner])
    others = ordinary[below(swap, len(ordinary))]
    shown = ids.copy()
    shown[where] = np.where(fate < 0.8, mask, np.where(fate < 0.9, others, ids[where]))
    return Masked(shown, where, ids[where])
