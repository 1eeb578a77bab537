"""Batches of streams that hide nothing: every token is asked for the next one, also where that is in the next batch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .batches import Arrays, Maker
from .views import Plan
from .views.base import spread


@dataclass(frozen=True)
class Flowing(Maker):
    """Text, with a [CLS] before it only where its document begins; where it ends, the last token is asked for [SEP]."""

    def __call__(self, plan: Plan, epoch: int) -> Arrays:
        corpus, tokenizer, sizes = self.corpus, self.corpus.tokenizer, plan.ends - plan.starts
        opens, ends = self._at_border(plan.starts), self._at_border(plan.ends)
        lengths = sizes + opens
        ids = np.full(int(lengths.sum()), tokenizer.cls)
        ids[spread(lengths.cumsum() - sizes, sizes)] = corpus.tokens[spread(plan.starts, sizes)]
        words = np.append(ids[1:], 0)
        behind = corpus.tokens[np.minimum(plan.ends, len(corpus.tokens) - 1)]
        words[lengths.cumsum() - 1] = np.where(ends, tokenizer.sep, behind)
        return Arrays(ids, lengths, None, np.arange(len(ids)), words, None, plan.flow)

    def __reduce__(self) -> tuple[Any, ...]:
        return Flowing, (self.path, self.masks, self.rate, self.seed)

    def _at_border(self, where: "np.ndarray[Any, np.dtype[np.int64]]") -> "np.ndarray[Any, np.dtype[np.bool_]]":
        borders = self.corpus.borders
        return np.asarray(borders[np.searchsorted(borders, where)] == where)
