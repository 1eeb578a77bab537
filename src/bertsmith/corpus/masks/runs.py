"""Runs of neighbouring words: spans of geometric length (SpanBERT), or n-grams (ALBERT)."""

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ...config import Count, Variant
from .base import Ints, Words

TRIES = 64  # proposals a sample gets; what does not fit into its gaps stays


class Runs(Variant, frozen=True):
    """Runs of neighbouring words whose lengths are drawn from `odds`."""

    by_word: ClassVar[bool] = True

    def odds(self) -> NDArray[np.float64]:
        """The chance of a run of 1, 2, ... words."""
        raise NotImplementedError

    def units(self, words: Words) -> Ints:
        """Each sample proposes a run a round; one that meets a run already there, or another run beside it, is dropped."""
        unit = np.full(len(words.starts), -1)
        ends = np.append(0, words.sizes.cumsum())
        first = np.searchsorted(words.sample, np.arange(len(words.names)), side="left")
        count = np.searchsorted(words.sample, np.arange(len(words.names)), side="right") - first
        left, live = words.quota.copy(), np.flatnonzero(count)
        chances = self.odds().cumsum()
        for attempt in range(TRIES):
            size = 1 + np.searchsorted(chances, words.dice("size", live, attempt) * chances[-1], side="right")
            size = np.minimum(size, count[live])
            start = first[live] + (words.dice("start", live, attempt) * (count[live] - size + 1)).astype(np.int64)
            tokens = ends[start + size] - ends[start]
            free = np.array([(unit[a : a + n] < 0).all() for a, n in zip(start, size, strict=True)], bool)
            fits = (left[live] >= tokens) | (words.dice("last", live, attempt) * tokens < left[live])
            for a, n in zip(start[free & fits], size[free & fits], strict=True):
                unit[a : a + n] = attempt
            left[live] -= np.where(free, tokens, 0)  # a run refused by chance ends the sample too: its quota is met on average
            live = live[left[live] > 0]
            if not len(live):
                break
        return unit


class Spans(Runs, frozen=True):
    """Spans whose length in words is geometric and cut off at a longest one."""

    p: Annotated[float, Meta(gt=0, lt=1), "the chance that a span ends with each word"] = 0.2
    longest: Annotated[Count, "words"] = 10

    def odds(self) -> NDArray[np.float64]:
        odds = self.p * np.power(1 - self.p, np.arange(self.longest, dtype=np.float64))
        return odds / odds.sum()


class Ngrams(Runs, frozen=True):
    """N-grams of words, the chance of n falling as 1/n."""

    longest: Annotated[Count, "words"] = 3

    def odds(self) -> NDArray[np.float64]:
        odds = 1.0 / np.arange(1, self.longest + 1, dtype=np.float64)
        return odds / odds.sum()
