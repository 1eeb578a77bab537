"""Batch k as a pure function of (corpus, seed, k): which samples it holds, and their tokens, hidden and packed."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rng import Stream, bits, uniform
from .masking import MaskConfig, Words, hidden
from .sampling import Plan
from .sampling.base import spread
from .store import Corpus

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
            begun |= (uniform(bits(self.seed, Stream.MASK_SINGLE_TOKENS, epoch, plan.names)) < self.masks.singly)[sample]
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
class Following(Maker):
    """[CLS], then text; a [SEP] behind it only where its document ends, since a model that writes would end there too."""

    def __call__(self, plan: Plan, epoch: int) -> Arrays:
        ids, _, lengths = self._packed(plan)
        lasts = lengths.cumsum() - 1
        kept = np.ones(len(ids), bool)
        kept[lasts[~self._ended(plan)]] = False
        sample = np.repeat(np.arange(len(lengths)), lengths)[kept]
        tokens = ids[kept]
        where = np.flatnonzero(sample[:-1] == sample[1:])  # the next is of the same sequence
        return Arrays(tokens, np.bincount(sample, minlength=len(lengths)), None, where, tokens[where + 1], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Following, (self.path, self.masks, self.rate, self.seed)

    def _ended(self, plan: Plan) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """(samples,): the last span of each ends with its document."""
        borders, ends = self.corpus.borders, plan.ends[plan.first[1:] - 1]
        found: Ints = borders[np.searchsorted(borders, ends)]
        return found == ends


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


@dataclass(frozen=True)
class Around(Maker):
    """[CLS] text [SEP]; `where` are the words of the text, so that each has a token before it and one behind."""

    def __call__(self, plan: Plan, epoch: int) -> Arrays:
        ids, source, lengths = self._packed(plan)
        where = np.flatnonzero(source >= 0)
        return Arrays(ids, lengths, None, where, ids[where], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Around, (self.path, self.masks, self.rate, self.seed)
