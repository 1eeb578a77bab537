"""The sample index of an epoch (each sample as spans of the corpus, before any token is read), and the sampler protocol."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..store import Corpus

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SampleIndex:
    """Sample i is [CLS] followed by spans span_offsets[i] to span_offsets[i + 1] of the corpus, each followed by [SEP]."""

    span_starts: Ints  # (spans,): token positions in the corpus
    span_ends: Ints
    span_offsets: Ints  # (samples + 1,)
    sample_ids: Ints  # (samples,): key of its random streams, kept by `select`
    labels: NDArray[np.int64] | None = None  # (samples,): label of the sentence pair
    has_segments: bool = False  # the second span is segment B
    # (samples, 2): token position where the sample ends, and where the one it continues ended, or -1
    stream_positions: Ints | None = None

    @classmethod
    def from_spans(
        cls, starts: Ints, ends: Ints, spans_per_sample: Ints | int, labels: Ints | None = None, has_segments: bool = False
    ) -> "SampleIndex":
        """`spans_per_sample`: the same for all samples, or (samples,)."""
        num_samples = len(starts) // spans_per_sample if isinstance(spans_per_sample, int) else len(spans_per_sample)
        spans = np.full(num_samples, spans_per_sample) if isinstance(spans_per_sample, int) else spans_per_sample
        return cls(starts, ends, np.append(0, spans.cumsum()), np.arange(num_samples), labels, has_segments)

    def __len__(self) -> int:
        return len(self.span_offsets) - 1

    @property
    def lengths(self) -> Ints:
        """(samples,): number of tokens, [CLS] and [SEP] included."""
        span_cumsum = np.append(0, (self.span_ends - self.span_starts).cumsum())
        return span_cumsum[self.span_offsets[1:]] - span_cumsum[self.span_offsets[:-1]] + np.diff(self.span_offsets) + 1

    def select(self, samples: Ints) -> "SampleIndex":
        """The index of these samples, in this order."""
        sizes = np.diff(self.span_offsets)[samples]
        span_indices = concat_ranges(self.span_offsets[samples], sizes)
        labels = None if self.labels is None else self.labels[samples]
        span_offsets = np.append(0, sizes.cumsum())
        stream_positions = None if self.stream_positions is None else self.stream_positions[samples]
        return SampleIndex(
            self.span_starts[span_indices],
            self.span_ends[span_indices],
            span_offsets,
            self.sample_ids[samples],
            labels,
            self.has_segments,
            stream_positions,
        )


class Sampler(Protocol):
    """Divides documents of a corpus into samples."""

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        """Samples of at most `max_length` tokens from these documents: a pure function of its arguments."""
        ...


def concat_ranges(starts: Ints, sizes: Ints) -> Ints:
    """Concatenation of the ranges starts[i] to starts[i] + sizes[i]."""
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + sizes, sizes) + np.arange(total)
