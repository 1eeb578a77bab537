"""Batches that hide nothing: every word of the text is asked for, of those on either side of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .batches import Arrays, Maker
from .views import Plan


@dataclass(frozen=True)
class Around(Maker):
    """[CLS] text [SEP]; `where` are the words of the text, so that each has a token before it and one behind."""

    def __call__(self, plan: Plan, epoch: int) -> Arrays:
        ids, source, lengths = self._packed(plan)
        where = np.flatnonzero(source >= 0)
        return Arrays(ids, lengths, None, where, ids[where], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Around, (self.path, self.masks, self.rate, self.seed)
