"""What a view gives: every sample of an epoch as spans of the corpus, planned before any token is read."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..store import Corpus

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Sample i is [CLS], then its spans `first[i]..first[i + 1]` of the corpus, a [SEP] behind each."""

    starts: Ints  # (spans,): token positions
    ends: Ints
    first: Ints  # (samples + 1,)
    names: Ints  # (samples,): what a sample is called in the dice, the same in any selection
    labels: NDArray[np.int64] | None = None  # (samples,): what an objective asks of the pair
    segmented: bool = False  # the second span is segment B
    flow: Ints | None = None  # (samples, 2): where it ends in the corpus, and where the one it goes on from did, or -1

    @classmethod
    def of(
        cls, starts: Ints, ends: Ints, spans_each: Ints | int, labels: Ints | None = None, segmented: bool = False
    ) -> "Plan":
        samples = len(starts) // spans_each if isinstance(spans_each, int) else len(spans_each)
        sizes = np.full(samples, spans_each) if isinstance(spans_each, int) else spans_each
        return cls(starts, ends, np.append(0, sizes.cumsum()), np.arange(samples), labels, segmented)

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def lengths(self) -> Ints:
        """(samples,): tokens of each, [CLS] and [SEP]s counted."""
        spans = np.append(0, (self.ends - self.starts).cumsum())
        return spans[self.first[1:]] - spans[self.first[:-1]] + np.diff(self.first) + 1

    def chosen(self, samples: Ints) -> "Plan":
        """The same plan with only these samples, in this order."""
        sizes = np.diff(self.first)[samples]
        where = spread(self.first[samples], sizes)
        labels = None if self.labels is None else self.labels[samples]
        first = np.append(0, sizes.cumsum())
        flow = None if self.flow is None else self.flow[samples]
        return Plan(self.starts[where], self.ends[where], first, self.names[samples], labels, self.segmented, flow)


class View(Protocol):
    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        """Samples of at most `length` tokens from these documents: a pure function of what it is given."""
        ...


def spread(starts: Ints, sizes: Ints) -> Ints:
    """The ranges starts[i]..starts[i] + sizes[i], one after another."""
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + sizes, sizes) + np.arange(total)
