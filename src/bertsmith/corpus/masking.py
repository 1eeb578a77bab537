"""Hiding: some units of a batch are chosen, and each is masked, swapped or left as it is, whole (80/10/10)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ..config import PosInt, Probability, Variant
from ..rng import Stream, randint, random_bits, uniform

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MaskableWords:
    """The words of a batch that may be hidden, in order: each a run of tokens within one sample."""

    starts: Ints  # (words,): positions in the batch
    sizes: Ints  # (words,): tokens of each
    sample_index: Ints  # (words,): which sample of the batch
    sample_starts: Ints  # (samples,): where each sample begins in the batch
    sample_ids: Ints  # (samples,): what the dice call them
    token_budget: NDArray[np.float64]  # (samples,): tokens to hide in each; a fraction is a chance
    seed: int
    epoch: int

    def uniforms(self, purpose: str, sample_index: Ints, index: Ints | int) -> NDArray[np.float64]:
        return uniform(random_bits(self.seed, purpose, self.epoch, self.sample_ids[sample_index], index))

    @property
    def index_in_sample(self) -> Ints:
        """(words,): the number of each within its sample."""
        return np.arange(len(self.starts)) - np.searchsorted(self.sample_index, self.sample_index, side="left")


class MaskingStrategy(Protocol):
    def select_units(self, words: MaskableWords) -> Ints:
        """(words,): the number of the unit each word is hidden with, -1 for words that stay."""
        ...


@dataclass(frozen=True)
class MaskedTokens:
    input_ids: Ints  # (tokens,): what the model sees
    output_indices: Ints  # (targets,): positions it is asked about, masked, swapped and untouched alike
    target_ids: Ints  # (targets,): what stood there


def mask_tokens(input_ids: Ints, words: MaskableWords, units: Ints, mask_token_id: int, replacement_ids: Ints) -> MaskedTokens:
    """Each unit as one: all its tokens masked (80 %), or swapped for random ones (10 %), or left (10 %)."""
    chosen = units >= 0
    sizes, starts, sample = words.sizes[chosen], words.starts[chosen], words.sample_index[chosen]
    where = np.repeat(starts - sizes.cumsum() + sizes, sizes) + np.arange(sizes.sum())
    fate = np.repeat(words.uniforms(Stream.MASK_CORRUPTION, sample, units[chosen]), sizes)
    owner = np.repeat(sample, sizes)
    swap = random_bits(
        words.seed, Stream.MASK_REPLACEMENT, words.epoch, words.sample_ids[owner], where - words.sample_starts[owner]
    )
    others = replacement_ids[randint(swap, len(replacement_ids))]
    shown = input_ids.copy()
    shown[where] = np.where(fate < 0.8, mask_token_id, np.where(fate < 0.9, others, input_ids[where]))
    return MaskedTokens(shown, where, input_ids[where])


class RandomUnitMasking(Variant, frozen=True):
    """Units chosen in random order."""

    def select_units(self, words: MaskableWords) -> Ints:
        """Words in random order while they fit the quota; the one that passes it is taken by the chance that evens it out."""
        nth = words.index_in_sample
        order = np.lexsort([words.uniforms(Stream.MASK_ORDER, words.sample_index, nth), words.sample_index])
        sizes, sample = words.sizes[order], words.sample_index[order]
        ends = sizes.cumsum()
        before = ends - sizes
        before = before - before[np.searchsorted(sample, sample, side="left")]
        left = words.token_budget[sample] - before
        taken = (left >= sizes) | ((left > 0) & (words.uniforms(Stream.MASK_LAST, sample, 0) * sizes < left))
        unit = np.full(len(order), -1)
        unit[order[taken]] = nth[order[taken]]
        return unit


class WholeWordMasking(RandomUnitMasking, frozen=True, tag="whole-words"):
    """Whole words: all pieces of a word are hidden together, Chinese words where the corpus marks them."""

    by_word: ClassVar[bool] = True
    singly: Annotated[
        Probability, "share of the samples in which pieces are hidden one by one; without any, half a word is a riddle"
    ] = 0.0


class TokenMasking(RandomUnitMasking, frozen=True, tag="pieces"):
    """Single pieces, as BERT was first trained."""

    by_word: ClassVar[bool] = False
    singly: ClassVar[float] = 0.0


class RunMasking(Variant, frozen=True):
    """Runs of neighbouring words whose lengths are drawn from `odds`."""

    by_word: ClassVar[bool] = True
    singly: ClassVar[float] = 0.0

    def length_probs(self) -> NDArray[np.float64]:
        """The chance of a run of 1, 2, ... words."""
        raise NotImplementedError

    def select_units(self, words: MaskableWords) -> Ints:
        """Runs are drawn first, then dealt out among the words that stay, each way as likely: none is refused for its length.

        Two runs never overlap but may touch, as in SpanBERT; each keeps its own fate. What can never be hidden, such as a
        [SEP] or an unknown word, is passed over: a run may go on behind it.
        """
        count = np.bincount(words.sample_index, minlength=len(words.sample_ids))
        owner, nth, size = self._sample_runs(words, count)
        hidden, runs = (np.bincount(owner, by, minlength=len(count)).astype(np.int64) for by in (size, None))
        sample, place = _enumerate_per_sample(count - hidden + runs)  # an item is a run, or a word that stays
        order = np.lexsort([words.uniforms(Stream.MASK_SPAN_START, sample, place), sample])
        chosen = order[np.searchsorted(sample, owner) + nth]
        unit, length = np.full(len(sample), -1), np.ones(len(sample), np.int64)
        unit[chosen], length[chosen] = nth, size
        return np.repeat(unit, length)

    def _sample_runs(self, words: MaskableWords, words_per_sample: Ints) -> tuple[Ints, Ints, Ints]:
        """The sample, the number in it and the words of each run; a quota is met on average.

        Whether there is one more run is decided before its length is known, since a run refused for passing the quota
        would mostly be a long one. With `left` words to go, the chance is left / (left + the excess to be expected), which
        makes the words hidden `left` on average, whatever the lengths.
        """
        tokens = np.bincount(words.sample_index, words.sizes, minlength=len(words_per_sample))
        quota = (
            words.token_budget * words_per_sample / np.maximum(tokens, 1)
        )  # in words: their sizes have no part in which are hidden
        owner, nth = _enumerate_per_sample(np.ceil(quota).astype(np.int64))
        chances = self.length_probs().cumsum()
        size = 1 + np.searchsorted(chances, words.uniforms(Stream.MASK_SPAN_LENGTH, owner, nth) * chances[-1], side="right")
        before = np.minimum(_cumsum_per_sample(size, owner) - size, words_per_sample[owner])
        left, room = quota[owner] - before, words_per_sample[owner] - before
        excess = self._mean_length_below(room) - self._mean_length_below(left)
        last = words.uniforms(Stream.MASK_SPAN_LAST, owner, nth) * (left + excess) >= left
        taken = _cumsum_per_sample(last, owner) == 0
        return owner[taken], nth[taken], np.minimum(size, room)[taken]

    def _mean_length_below(self, limit: Ints | NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean length of runs cut off at `limit` words, a straight line between whole numbers."""
        longer = 1 - np.append(0, self.length_probs().cumsum()[:-1])  # the chance of more than 0, 1, ... words
        means = np.append(0, longer.cumsum())
        return np.interp(limit, np.arange(len(means)), means)


def _enumerate_per_sample(counts: Ints) -> tuple[Ints, Ints]:
    """So many things for each sample: the sample of each, and its number there."""
    sample = np.repeat(np.arange(len(counts)), counts)
    return sample, np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)


def _cumsum_per_sample(values: NDArray[Any], sample_index: Ints) -> Ints:
    """Running sums that begin anew with each sample."""
    sums = np.append(0, values.cumsum())
    return sums[1:] - sums[np.searchsorted(sample_index, sample_index)]


class SpanMasking(RunMasking, frozen=True, tag="spans"):
    """Spans whose length in words is geometric and cut off at a longest one."""

    p: Annotated[float, Meta(gt=0, lt=1), "the chance that a span ends with each word"] = 0.2
    longest: Annotated[PosInt, "words"] = 10

    def length_probs(self) -> NDArray[np.float64]:
        odds = self.p * np.power(1 - self.p, np.arange(self.longest, dtype=np.float64))
        return odds / odds.sum()


class NgramMasking(RunMasking, frozen=True, tag="ngrams"):
    """N-grams of words, the chance of n falling as 1/n."""

    longest: Annotated[PosInt, "words"] = 3

    def length_probs(self) -> NDArray[np.float64]:
        odds = 1.0 / np.arange(1, self.longest + 1, dtype=np.float64)
        return odds / odds.sum()


MaskingConfig = TokenMasking | WholeWordMasking | SpanMasking | NgramMasking
