"""Runs of neighbouring words: spans of geometric length (SpanBERT), or n-grams (ALBERT)."""

from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ...config import Count, Variant
from .base import Ints, Words


class Runs(Variant, frozen=True):
    """Runs of neighbouring words whose lengths are drawn from `odds`."""

    by_word: ClassVar[bool] = True
    singly: ClassVar[float] = 0.0

    def odds(self) -> NDArray[np.float64]:
        """The chance of a run of 1, 2, ... words."""
        raise NotImplementedError

    def units(self, words: Words) -> Ints:
        """Runs are drawn first, then dealt out among the words that stay, each way as likely: none is refused for its length.

        Two runs never overlap but may touch, as in SpanBERT; each keeps its own fate. What can never be hidden, such as a
        [SEP] or an unknown word, is passed over: a run may go on behind it.
        """
        count = np.bincount(words.sample, minlength=len(words.names))
        owner, nth, size = self._drawn(words, count)
        hidden, runs = (np.bincount(owner, by, minlength=len(count)).astype(np.int64) for by in (size, None))
        sample, place = _numbered(count - hidden + runs)  # an item is a run, or a word that stays
        order = np.lexsort([words.dice("place", sample, place), sample])
        chosen = order[np.searchsorted(sample, owner) + nth]
        unit, length = np.full(len(sample), -1), np.ones(len(sample), np.int64)
        unit[chosen], length[chosen] = nth, size
        return np.repeat(unit, length)

    def _drawn(self, words: Words, count: Ints) -> tuple[Ints, Ints, Ints]:
        """The sample, the number in it and the words of each run; a quota is met on average.

        Whether there is one more run is decided before its length is known, since a run refused for passing the quota
        would mostly be a long one. With `left` words to go, the chance is left / (left + the excess to be expected), which
        makes the words hidden `left` on average, whatever the lengths.
        """
        tokens = np.bincount(words.sample, words.sizes, minlength=len(count))
        quota = words.quota * count / np.maximum(tokens, 1)  # in words: their sizes have no part in which are hidden
        owner, nth = _numbered(np.ceil(quota).astype(np.int64))
        chances = self.odds().cumsum()
        size = 1 + np.searchsorted(chances, words.dice("size", owner, nth) * chances[-1], side="right")
        before = np.minimum(_sums(size, owner) - size, count[owner])
        left, room = quota[owner] - before, count[owner] - before
        excess = self._mean_below(room) - self._mean_below(left)
        last = words.dice("more", owner, nth) * (left + excess) >= left
        taken = _sums(last, owner) == 0
        return owner[taken], nth[taken], np.minimum(size, room)[taken]

    def _mean_below(self, limit: Ints | NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean length of runs cut off at `limit` words, a straight line between whole numbers."""
        longer = 1 - np.append(0, self.odds().cumsum()[:-1])  # the chance of more than 0, 1, ... words
        means = np.append(0, longer.cumsum())
        return np.interp(limit, np.arange(len(means)), means)


def _numbered(counts: Ints) -> tuple[Ints, Ints]:
    """So many things for each sample: the sample of each, and its number there."""
    sample = np.repeat(np.arange(len(counts)), counts)
    return sample, np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)


def _sums(values: NDArray[Any], sample: Ints) -> Ints:
    """Running sums that begin anew with each sample."""
    sums = np.append(0, values.cumsum())
    return sums[1:] - sums[np.searchsorted(sample, sample)]


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
