"""What a view gives: every sample of an epoch as spans of the corpus, planned before any token is read."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..store import Corpus

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SampleIndex:
    """Sample i is [CLS], then its spans `first[i]..first[i + 1]` of the corpus, a [SEP] behind each."""

    span_starts: Ints  # (spans,): token positions
    span_ends: Ints
    span_offsets: Ints  # (samples + 1,)
    sample_ids: Ints  # (samples,): what a sample is called in the dice, the same in any selection
    labels: NDArray[np.int64] | None = None  # (samples,): what an objective asks of the pair
    has_segments: bool = False  # the second span is segment B
    stream_positions: Ints | None = (
        None  # (samples, 2): where it ends in the corpus, and where the one it goes on from did, or -1
    )

    @classmethod
    def from_spans(
        cls, starts: Ints, ends: Ints, spans_per_sample: Ints | int, labels: Ints | None = None, has_segments: bool = False
    ) -> "SampleIndex":
        samples = len(starts) // spans_per_sample if isinstance(spans_per_sample, int) else len(spans_per_sample)
        sizes = np.full(samples, spans_per_sample) if isinstance(spans_per_sample, int) else spans_per_sample
        return cls(starts, ends, np.append(0, sizes.cumsum()), np.arange(samples), labels, has_segments)

    def __len__(self) -> int:
        return len(self.span_offsets) - 1

    @property
    def lengths(self) -> Ints:
        """(samples,): tokens of each, [CLS] and [SEP]s counted."""
        spans = np.append(0, (self.span_ends - self.span_starts).cumsum())
        return spans[self.span_offsets[1:]] - spans[self.span_offsets[:-1]] + np.diff(self.span_offsets) + 1

    def select(self, samples: Ints) -> "SampleIndex":
        """The same plan with only these samples, in this order."""
        sizes = np.diff(self.span_offsets)[samples]
        where = concat_ranges(self.span_offsets[samples], sizes)
        labels = None if self.labels is None else self.labels[samples]
        first = np.append(0, sizes.cumsum())
        flow = None if self.stream_positions is None else self.stream_positions[samples]
        return SampleIndex(
            self.span_starts[where], self.span_ends[where], first, self.sample_ids[samples], labels, self.has_segments, flow
        )


class Sampler(Protocol):
    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        """Samples of at most `length` tokens from these documents: a pure function of what it is given."""
        ...


def concat_ranges(starts: Ints, sizes: Ints) -> Ints:
    """The ranges starts[i]..starts[i] + sizes[i], one after another."""
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + sizes, sizes) + np.arange(total)
