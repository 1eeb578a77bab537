"""Batch k as a pure function of (corpus, seed, k): which samples it holds, and their tokens, hidden and packed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..random import bits, shuffled, uniform
from .masks import MaskConfig, Words, hidden
from .store import Corpus
from .views import PairConfig, Plan, Streams, ViewConfig
from .views.base import spread

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Arrays:
    """A packed batch in numpy: sequences one after another, nothing between."""

    tokens: Ints  # (tokens,): what is shown
    lengths: Ints  # (sequences,)
    segments: Ints | None  # (tokens,): 0 for A, 1 for B
    where: Ints  # (targets,): token positions asked about
    words: Ints  # (targets,): what stood there
    labels: Ints | None  # (sequences,)
    flow: Ints | None = None  # (sequences, 2): where each ends, and the one it goes on from, as a plan has them


@dataclass(frozen=True)
class Maker:
    """Rows of a plan to a packed, masked batch; small enough to send to a worker, which maps the corpus itself."""

    path: Path
    masks: MaskConfig
    rate: float
    seed: int

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus.open(self.path, check=False)

    def __call__(self, plan: Plan, epoch: int) -> Arrays:
        ids, source, lengths = self._packed(plan)
        words = self._words(ids, source, lengths, plan, epoch)
        tokenizer = self.corpus.tokenizer
        masked = hidden(ids, words, self.masks.units(words), tokenizer.mask, tokenizer.ordinary)
        order = np.argsort(masked.where)
        segments = self._segments(plan) if plan.segmented else None
        return Arrays(masked.shown, lengths, segments, masked.where[order], masked.answers[order], plan.labels, plan.flow)

    def __reduce__(self) -> tuple[Any, ...]:
        return Maker, (self.path, self.masks, self.rate, self.seed)  # not the map: each process opens its own

    def _packed(self, plan: Plan) -> tuple[Ints, Ints, Ints]:
        """Ids, where in the corpus each stood (-1 for specials), and the length of each sample."""
        tokenizer, sizes, lengths = self.corpus.tokenizer, plan.ends - plan.starts, plan.lengths
        ids, source = np.full(int(lengths.sum()), tokenizer.sep), np.full(int(lengths.sum()), -1)
        ids[lengths.cumsum() - lengths] = tokenizer.cls
        owner = np.repeat(np.arange(len(plan)), np.diff(plan.first))
        to = spread((sizes + 1).cumsum() - sizes + owner, sizes)  # behind a [CLS] for each sample, a [SEP] for each span
        source[to] = spread(plan.starts, sizes)
        ids[to] = self.corpus.tokens[source[to]]
        return ids, source, lengths

    def _words(self, ids: Ints, source: Ints, lengths: Ints, plan: Plan, epoch: int) -> Words:
        """The words that may be hidden: no special token is one, not even an unknown word."""
        begins = lengths.cumsum() - lengths
        free = np.flatnonzero((source >= 0) & ~self.corpus.tokenizer.special[ids])
        sample = np.repeat(np.arange(len(lengths)), lengths)[free]
        apart = np.diff(free, prepend=-2) > 1  # behind a gap a word begins, whatever its piece
        begun = apart | self.corpus.starts_word(source[free]) if self.masks.by_word else np.ones(len(free), bool)
        if self.masks.singly > 0:
            begun |= (uniform(bits(self.seed, "mask singly", epoch, plan.names)) < self.masks.singly)[sample]
        starts = np.flatnonzero(begun)
        sizes = np.diff(starts, append=len(free))
        quota = self.rate * np.bincount(sample, minlength=len(lengths)).astype(np.float64)
        return Words(free[starts], sizes, sample[starts], begins, plan.names, quota, self.seed, epoch)

    def _segments(self, plan: Plan) -> Ints:
        sizes = plan.ends - plan.starts + 1
        sizes[plan.first[:-1]] += 1  # A's part begins with [CLS]
        second = np.arange(len(sizes)) - np.repeat(plan.first[:-1], np.diff(plan.first)) > 0
        return np.repeat(second.astype(np.int64), sizes)


@dataclass(frozen=True)
class Batches:
    """Which samples make batch k. It needs no state: resuming is "start at k", and only two plans are ever made for it."""

    maker: Maker
    view: ViewConfig | PairConfig
    documents: Ints
    length: int
    tokens: int  # at most, in one batch
    repeats: int | None = None  # with a number, epochs repeat their samples and masks after so many (static masks)
    plans: dict[int, tuple[Plan, list[Ints]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.length > self.tokens:
            raise BadInput(f"a sample of {self.length} tokens does not fit a batch of {self.tokens}; raise train.batch_tokens "
                           "or lower length")  # fmt: skip

    def __call__(self, k: int) -> Arrays:
        return self.maker(*self.rows(k))

    def __iter__(self) -> Iterator[Arrays]:
        """The first epoch."""
        return (self(k) for k in range(self.an_epoch))

    def rows(self, k: int) -> tuple[Plan, int]:
        """What to make batch k from: its samples, and the epoch their masks are drawn for."""
        epoch, place = divmod(k, self.an_epoch)
        plan, cuts = self._planned(epoch)
        return plan.chosen(cuts[place % len(cuts)]), self._drawn(epoch)

    @cached_property
    def an_epoch(self) -> int:
        """Batches in an epoch: as many as the first needs, so that k alone tells the epoch."""
        return len(self._planned(0)[1])

    def _drawn(self, epoch: int) -> int:
        return epoch % self.repeats if self.repeats else epoch

    def _planned(self, epoch: int) -> tuple[Plan, list[Ints]]:
        if epoch not in self.plans:
            seed, corpus = self.maker.seed, self.maker.corpus
            plan = self.view.plan(corpus, self.documents, self.length, seed, self._drawn(epoch))
            for old in [e for e in self.plans if e != epoch - 1]:
                del self.plans[old]
            self.plans[epoch] = plan, self._cut(plan, epoch)
        return self.plans[epoch]

    def _cut(self, plan: Plan, epoch: int) -> list[Ints]:
        if isinstance(self.view, Streams):
            return self.view.rows(len(plan), self.tokens // self.length)
        order = shuffled(len(plan), self.maker.seed, "sample order", epoch)
        return np.split(order, cuts(plan.lengths[order], self.tokens))


def cuts(lengths: Ints, budget: int) -> list[int]:
    """Where one batch is full and the next begins."""
    ends, cuts = lengths.cumsum(), [0]
    while cuts[-1] < len(ends):
        done = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(int(np.searchsorted(ends, done + budget, side="right")))
    return cuts[1:-1]
