"""Batches that hide nothing: every token but the first of its sequence is asked for by those before it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .batches import Arrays, Ints, Maker
from .views import Plan


@dataclass(frozen=True)
class Following(Maker):
    """[CLS], then text; a [SEP] behind it only where its document ends, since a model that writes would end there too."""

    def __call__(self, plan: Plan, epoch: int) -> Arrays:
        ids, _, lengths = self._packed(plan)
        lasts = lengths.cumsum() - 1
        kept = np.ones(len(ids), bool)
        kept[lasts[~self._ended(plan)]] = False
        sample = np.repeat(np.arange(len(lengths)), lengths)[kept]
        tokens = ids[kept]
        where = np.flatnonzero(sample[:-1] == sample[1:])  # the next is of the same sequence
        return Arrays(tokens, np.bincount(sample, minlength=len(lengths)), None, where, tokens[where + 1], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Following, (self.path, self.masks, self.rate, self.seed)

    def _ended(self, plan: Plan) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """(samples,): the last span of each ends with its document."""
        borders, ends = self.corpus.borders, plan.ends[plan.first[1:] - 1]
        found: Ints = borders[np.searchsorted(borders, ends)]
        return found == ends
