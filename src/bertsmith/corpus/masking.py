"""Masking for MLM: which tokens, whole words, spans or n-grams of a batch are selected, and their 80/10/10 corruption.

- `TokenMasking`: single tokens (BERT, Devlin et al. 2019)
- `WholeWordMasking`: all tokens of a word together (BERT-wwm; Cui et al. 2019 for Chinese)
- `SpanMasking`: spans of words with geometric length (SpanBERT, Joshi et al. 2020)
- `NgramMasking`: n-grams of words, p(n) proportional to 1/n (ALBERT, Lan et al. 2020)
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ..config import PosInt, Probability, Variant
from ..rng import Stream, randint, random_bits, uniform

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MaskableWords:
    """The words of a batch that may be masked, in order; each is a range of tokens within one sample."""

    starts: Ints  # (words,): positions in the batch
    sizes: Ints  # (words,): number of tokens
    sample_index: Ints  # (words,): sample of the batch
    sample_starts: Ints  # (samples,): position of the first token of each sample
    sample_ids: Ints  # (samples,): keys of the random streams, independent of the batch
    token_budget: NDArray[np.float64]  # (samples,): expected number of tokens to mask; may be fractional
    seed: int
    epoch: int

    def uniforms(self, purpose: str, sample_index: Ints, index: Ints | int) -> NDArray[np.float64]:
        """Uniform random numbers in [0, 1) that depend on (seed, purpose, epoch, sample id, index) only."""
        return uniform(random_bits(self.seed, purpose, self.epoch, self.sample_ids[sample_index], index))

    @property
    def index_in_sample(self) -> Ints:
        """(words,): index of each word within its sample."""
        return np.arange(len(self.starts)) - np.searchsorted(self.sample_index, self.sample_index, side="left")


class TokenTargets(NamedTuple):
    """Input tokens, and those of them to predict."""

    input_ids: Ints  # (tokens,): after corruption, if there is one
    output_indices: Ints  # (targets,): selected positions, whether masked, replaced or unchanged
    target_ids: Ints  # (targets,): what is predicted there, such as the original tokens


def mask_tokens(input_ids: Ints, words: MaskableWords, units: Ints, mask_token_id: int, replacement_ids: Ints) -> TokenTargets:
    """Corrupt each selected unit as a whole: [MASK] (80 %), random tokens of `replacement_ids` (10 %), unchanged (10 %)."""
    is_selected = units >= 0
    sizes, starts, sample_index = words.sizes[is_selected], words.starts[is_selected], words.sample_index[is_selected]
    positions = np.repeat(starts - sizes.cumsum() + sizes, sizes) + np.arange(sizes.sum())
    corruption = np.repeat(words.uniforms(Stream.MASK_CORRUPTION, sample_index, units[is_selected]), sizes)
    token_sample = np.repeat(sample_index, sizes)
    replacement_bits = random_bits(
        words.seed,
        Stream.MASK_REPLACEMENT,
        words.epoch,
        words.sample_ids[token_sample],
        positions - words.sample_starts[token_sample],
    )
    random_ids = replacement_ids[randint(replacement_bits, len(replacement_ids))]
    corrupted_ids = input_ids.copy()
    corrupted_ids[positions] = np.where(
        corruption < 0.8, mask_token_id, np.where(corruption < 0.9, random_ids, input_ids[positions])
    )
    return TokenTargets(corrupted_ids, positions, input_ids[positions])


class RandomUnitMasking(Variant, frozen=True):
    """Base of token and whole-word masking: units are single words, selected in random order."""

    def select_units(self, words: MaskableWords) -> Ints:
        """Select words in random order while they fit the budget; the first that exceeds it is selected with the probability
        that makes the expected number of masked tokens equal to the budget."""
        index = words.index_in_sample
        order = np.lexsort([words.uniforms(Stream.MASK_ORDER, words.sample_index, index), words.sample_index])
        sizes, sample_index = words.sizes[order], words.sample_index[order]
        ends = sizes.cumsum()
        tokens_before = ends - sizes
        tokens_before = tokens_before - tokens_before[np.searchsorted(sample_index, sample_index, side="left")]
        budget_left = words.token_budget[sample_index] - tokens_before
        is_selected = (budget_left >= sizes) | (
            (budget_left > 0) & (words.uniforms(Stream.MASK_LAST, sample_index, 0) * sizes < budget_left)
        )
        units = np.full(len(order), -1)
        units[order[is_selected]] = index[order[is_selected]]
        return units


class WholeWordMasking(RandomUnitMasking, frozen=True, tag="whole-word"):
    """Whole-word masking: all tokens of a word are masked together; Chinese words if the corpus marks them."""

    by_word: ClassVar[bool] = True
    token_masking_share: Annotated[Probability, "share of samples in which single tokens are masked instead of whole words"] = (
        0.0
    )


class TokenMasking(RandomUnitMasking, frozen=True, tag="token"):
    """Masking of single tokens, as in the original BERT."""

    by_word: ClassVar[bool] = False
    token_masking_share: ClassVar[float] = 0.0


class RunMasking(Variant, frozen=True):
    """Base of span and n-gram masking: runs of adjacent words with lengths sampled from `length_probs`."""

    by_word: ClassVar[bool] = True
    token_masking_share: ClassVar[float] = 0.0

    def length_probs(self) -> NDArray[np.float64]:
        """(max_length,): probability of a run of 1, 2, ... words."""
        raise NotImplementedError

    def select_units(self, words: MaskableWords) -> Ints:
        """Sample the run lengths first, then a uniformly random arrangement of runs and unmasked words: no run is rejected.

        Runs never overlap but may be adjacent, as in SpanBERT; each is corrupted independently. Tokens that cannot be masked,
        such as [SEP] or [UNK], are skipped: a run may continue after them.
        """
        words_per_sample = np.bincount(words.sample_index, minlength=len(words.sample_ids))
        run_sample, run_index, run_length = self._sample_runs(words, words_per_sample)
        masked_words, num_runs = (
            np.bincount(run_sample, weights, minlength=len(words_per_sample)).astype(np.int64) for weights in (run_length, None)
        )
        # An item is a run or an unmasked word.
        item_sample, item_index = _enumerate_per_sample(words_per_sample - masked_words + num_runs)
        order = np.lexsort([words.uniforms(Stream.MASK_SPAN_START, item_sample, item_index), item_sample])
        run_slots = order[np.searchsorted(item_sample, run_sample) + run_index]
        units, lengths = np.full(len(item_sample), -1), np.ones(len(item_sample), np.int64)
        units[run_slots], lengths[run_slots] = run_index, run_length
        return np.repeat(units, lengths)

    def _sample_runs(self, words: MaskableWords, words_per_sample: Ints) -> tuple[Ints, Ints, Ints]:
        """(sample, index within it, length in words) of each run; the expected number of masked words equals the budget.

        Whether to add another run is decided before its length is known, since rejecting runs that exceed the budget would
        mostly reject long ones. With `budget_left` words left, its probability is budget_left / (budget_left + expected
        excess), so that the expected number of words still to be masked is `budget_left`, whatever the lengths.
        """
        tokens_per_sample = np.bincount(words.sample_index, words.sizes, minlength=len(words_per_sample))
        # In words: which are masked does not depend on their tokens.
        word_budget = words.token_budget * words_per_sample / np.maximum(tokens_per_sample, 1)
        run_sample, run_index = _enumerate_per_sample(np.ceil(word_budget).astype(np.int64))
        cumulative_probs = self.length_probs().cumsum()
        run_length = 1 + np.searchsorted(
            cumulative_probs,
            words.uniforms(Stream.MASK_SPAN_LENGTH, run_sample, run_index) * cumulative_probs[-1],
            side="right",
        )
        words_before = np.minimum(_cumsum_per_sample(run_length, run_sample) - run_length, words_per_sample[run_sample])
        budget_left, words_left = word_budget[run_sample] - words_before, words_per_sample[run_sample] - words_before
        excess = self._mean_length_below(words_left) - self._mean_length_below(budget_left)
        is_past_end = words.uniforms(Stream.MASK_SPAN_LAST, run_sample, run_index) * (budget_left + excess) >= budget_left
        is_selected = _cumsum_per_sample(is_past_end, run_sample) == 0
        return run_sample[is_selected], run_index[is_selected], np.minimum(run_length, words_left)[is_selected]

    def _mean_length_below(self, limit: Ints | NDArray[np.float64]) -> NDArray[np.float64]:
        """E[min(run length, limit)], linearly interpolated between integers."""
        survival = 1 - np.append(0, self.length_probs().cumsum()[:-1])  # P(length > 0), P(length > 1), ...
        means = np.append(0, survival.cumsum())
        return np.interp(limit, np.arange(len(means)), means)


class SpanMasking(RunMasking, frozen=True, tag="span"):
    """Span masking: lengths in words follow a truncated geometric distribution."""

    p: Annotated[float, Meta(gt=0, lt=1), "parameter of the geometric distribution of span lengths (0.2 in SpanBERT)"] = 0.2
    max_span_length: Annotated[PosInt, "maximum span length in words (10 in SpanBERT)"] = 10

    def length_probs(self) -> NDArray[np.float64]:
        weights = self.p * np.power(1 - self.p, np.arange(self.max_span_length, dtype=np.float64))
        return weights / weights.sum()


class NgramMasking(RunMasking, frozen=True, tag="ngram"):
    """N-gram masking: n words with probability proportional to 1/n."""

    max_ngram: Annotated[PosInt, "maximum n-gram length in words (3 in ALBERT)"] = 3

    def length_probs(self) -> NDArray[np.float64]:
        weights = 1.0 / np.arange(1, self.max_ngram + 1, dtype=np.float64)
        return weights / weights.sum()


MaskingConfig = TokenMasking | WholeWordMasking | SpanMasking | NgramMasking


def _enumerate_per_sample(counts: Ints) -> tuple[Ints, Ints]:
    """For counts[i] items of each sample i: the sample of each item, and its index within the sample."""
    sample_index = np.repeat(np.arange(len(counts)), counts)
    return sample_index, np.arange(len(sample_index)) - np.repeat(counts.cumsum() - counts, counts)


def _cumsum_per_sample(values: NDArray[Any], sample_index: Ints) -> Ints:
    """Cumulative sums that restart with each sample."""
    sums = np.append(0, values.cumsum())
    return sums[1:] - sums[np.searchsorted(sample_index, sample_index)]
