"""Hiding: some units of a batch are chosen, and each is masked, swapped or left as it is, whole (80/10/10)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ..config import Chance, Count, Variant
from ..rng import Stream, below, bits, uniform

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
        return uniform(bits(self.seed, purpose, self.epoch, self.names[sample], nth))

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
    fate = np.repeat(words.dice(Stream.MASK_CORRUPTION, sample, unit[chosen]), sizes)
    owner = np.repeat(sample, sizes)
    swap = bits(words.seed, Stream.MASK_REPLACEMENT, words.epoch, words.names[owner], where - words.begins[owner])
    others = ordinary[below(swap, len(ordinary))]
    shown = ids.copy()
    shown[where] = np.where(fate < 0.8, mask, np.where(fate < 0.9, others, ids[where]))
    return Masked(shown, where, ids[where])


class OneByOne(Variant, frozen=True):
    """Units chosen in random order."""

    def units(self, words: Words) -> Ints:
        """Words in random order while they fit the quota; the one that passes it is taken by the chance that evens it out."""
        nth = words.nth
        order = np.lexsort([words.dice(Stream.MASK_ORDER, words.sample, nth), words.sample])
        sizes, sample = words.sizes[order], words.sample[order]
        ends = sizes.cumsum()
        before = ends - sizes
        before = before - before[np.searchsorted(sample, sample, side="left")]
        left = words.quota[sample] - before
        taken = (left >= sizes) | ((left > 0) & (words.dice(Stream.MASK_LAST, sample, 0) * sizes < left))
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
        order = np.lexsort([words.dice(Stream.MASK_SPAN_START, sample, place), sample])
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
        size = 1 + np.searchsorted(chances, words.dice(Stream.MASK_SPAN_LENGTH, owner, nth) * chances[-1], side="right")
        before = np.minimum(_sums(size, owner) - size, count[owner])
        left, room = quota[owner] - before, count[owner] - before
        excess = self._mean_below(room) - self._mean_below(left)
        last = words.dice(Stream.MASK_SPAN_LAST, owner, nth) * (left + excess) >= left
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


MaskConfig = Pieces | WholeWords | Spans | Ngrams
