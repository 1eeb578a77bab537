"""Two runs of sentences: does the second follow the first (BERT), or are they in order (ALBERT)?

The algorithm of the BERT paper's data, for all documents at once: a document goes forward one chunk a round, so that
drawing half a million pairs takes a second, and sample i of an epoch depends on (corpus, seed, epoch) alone.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from ...config import Share, Variant
from ...errors import BadInput
from ...rng import Bits, Stream, below, bits, uniform
from ..store import Corpus
from .base import Ints, Plan

LONGEST = 1024  # sentences read in one stretch: a library in one document is read at several places at once


class NextSentence(Variant, frozen=True):
    """Half the time B follows A in its document (label 0), else B is a run from another document (label 1)."""

    short: Annotated[Share, "share of samples with a shorter target length"] = 0.1
    style: Annotated[Literal["corrected", "google"], "google: lone sentences always get a random B, as published"] = "corrected"

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        if len(documents) < 2:
            raise BadInput(f"{corpus.path}: next-sentence prediction needs a second document to draw from; put a blank line "
                           "between documents and run `prepare` again, or choose objective=masked")  # fmt: skip
        walk = _Walk(corpus, documents, length - 3, self.short, seed, epoch, self.style)
        return _planned(corpus, walk.rounds(self._pair), length - 3, seed, epoch)

    def _pair(self, walk: "_Walk", chunk: "_Chunk") -> "_Pairs":
        alone = chunk.stop - chunk.start == 1
        away = uniform(walk.dice(Stream.PAIR_IS_RANDOM, chunk)) < 0.5
        if self.style == "google":
            away |= alone
        middle = chunk.start + np.where(alone, 1, 1 + below(walk.dice(Stream.PAIR_SPLIT, chunk), chunk.stop - chunk.start - 1))
        other, other_stop = walk.elsewhere(chunk, walk.tokens[middle] - walk.tokens[chunk.start], self.style)
        second, stop = np.where(away, other, middle), np.where(away, other_stop, chunk.stop)
        after = np.where(away, middle, chunk.stop)  # what A's chunk did not use is put back
        return _Pairs(chunk.start, middle, second, stop, away.astype(np.int64), after)


class SentenceOrder(Variant, frozen=True):
    """Two runs that follow one another (label 0), or the same two swapped (label 1)."""

    short: Annotated[Share, "share of samples with a shorter target length"] = 0.1

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        walk = _Walk(corpus, documents, length - 3, self.short, seed, epoch, "corrected")
        return _planned(corpus, walk.rounds(self._pair), length - 3, seed, epoch)

    def _pair(self, walk: "_Walk", chunk: "_Chunk") -> "_Pairs":
        swap = uniform(walk.dice(Stream.PAIR_IS_RANDOM, chunk)) < 0.5
        middle = chunk.start + 1 + below(walk.dice(Stream.PAIR_SPLIT, chunk), chunk.stop - chunk.start - 1)
        first, first_stop = np.where(swap, middle, chunk.start), np.where(swap, chunk.stop, middle)
        second, second_stop = np.where(swap, chunk.start, middle), np.where(swap, middle, chunk.stop)
        return _Pairs(first, first_stop, second, second_stop, swap.astype(np.int64), chunk.stop)


@dataclass(frozen=True)
class _Chunk:
    """One round: for each stretch still being read, sentences start..stop, about `target` tokens of them."""

    stretch: Ints
    start: Ints
    stop: Ints
    target: Ints
    round: int


@dataclass(frozen=True)
class _Pairs:
    first: Ints
    first_stop: Ints
    second: Ints
    second_stop: Ints
    label: Ints
    after: Ints  # the sentence to go on from


class _Walk:
    """Reads every stretch of the documents chunk by chunk, all of them abreast."""

    def __init__(self, corpus: Corpus, documents: Ints, room: int, short: float, seed: int, epoch: int, style: str) -> None:
        self.tokens, self.room, self.short, self.seed, self.epoch = corpus.sentences, room, short, seed, epoch
        self.begin, self.end = corpus.documents[documents], corpus.documents[documents + 1]
        self.lone = style == "google"  # a chunk of one sentence will do
        longest = np.iinfo(np.int64).max if self.lone else LONGEST
        sizes = -(-(self.end - self.begin) // longest)
        self.document = np.repeat(np.arange(len(documents)), sizes)  # of each stretch, among those given
        nth = np.arange(len(self.document)) - np.repeat(sizes.cumsum() - sizes, sizes)
        self.at = self.begin[self.document] + nth * (0 if self.lone else LONGEST)
        self.stop = self.end[self.document] if self.lone else np.minimum(self.at + LONGEST, self.end[self.document])

    def rounds(self, pair) -> list[tuple[Ints, int, _Pairs]]:  # type: ignore[no-untyped-def]
        """What `pair` made of each round, until all is read."""
        found: list[tuple[Ints, int, _Pairs]] = []
        least = 1 if self.lone else 2
        live = np.flatnonzero(self.stop - self.at >= least)
        while len(live):
            chunk = self._chunk(live, len(found), least)
            pairs = pair(self, chunk)
            found.append((live, len(found), pairs))
            self.at[live] = pairs.after
            live = live[self.stop[live] - pairs.after >= least]
        return found

    def _chunk(self, live: Ints, round: int, least: int) -> _Chunk:
        start, stop = self.at[live], self.stop[live]
        turn = 0 if self.lone else round  # the published code draws one length for a whole document
        brief = uniform(self._dice(Stream.PAIR_SHORT, live, turn)) < self.short
        target = np.where(brief, 2 + below(self._dice(Stream.PAIR_TARGET_LENGTH, live, turn), self.room - 1), self.room)
        full = np.searchsorted(self.tokens, self.tokens[start] + target, side="left")
        end = np.minimum(np.maximum(full, start + least), stop)
        if not self.lone:
            end = np.where(stop - end == 1, stop, end)  # a last sentence alone would never be read
        return _Chunk(live, start, end, target, round)

    def elsewhere(self, chunk: _Chunk, used: Ints, style: str) -> tuple[Ints, Ints]:
        """A run from another document, as long as A leaves room for."""
        own, count = self.document[chunk.stretch], len(self.begin)
        if style == "google":  # ten tries to miss A's own document, then it is taken
            other = below(self.dice(f"{Stream.PAIR_DOCUMENT} 0", chunk), count)
            for attempt in range(1, 10):
                other = np.where(other == own, below(self.dice(f"{Stream.PAIR_DOCUMENT} {attempt}", chunk), count), other)
        else:
            other = below(self.dice(f"{Stream.PAIR_DOCUMENT} 0", chunk), count - 1)
            other += other >= own
        begin, end = self.begin[other], self.end[other]
        start = begin + below(self.dice(Stream.PAIR_START, chunk), end - begin)
        full = np.searchsorted(self.tokens, self.tokens[start] + chunk.target - used, side="left")
        return start, np.minimum(np.maximum(full, start + 1), end)

    def dice(self, purpose: str, chunk: _Chunk) -> Bits:
        return self._dice(purpose, chunk.stretch, chunk.round)

    def _dice(self, purpose: str, stretch: Ints, round: int) -> Bits:
        return bits(self.seed, purpose, self.epoch, stretch, round)


def _planned(corpus: Corpus, rounds: list[tuple[Ints, int, _Pairs]], room: int, seed: int, epoch: int) -> Plan:
    if not rounds:
        raise BadInput(f"{corpus.path}: no document has two sentences, so no pair can be made; choose objective=masked, or "
                       "prepare text with several sentences a document")  # fmt: skip
    stretch = np.concatenate([live for live, _, _ in rounds])
    nth = np.concatenate([np.full(len(live), number) for live, number, _ in rounds])
    order = np.lexsort([nth, stretch])
    names = ("first", "first_stop", "second", "second_stop")
    a, a_end, b, b_end = (corpus.sentences[np.concatenate([getattr(p, n) for _, _, p in rounds])[order]] for n in names)
    label = np.concatenate([p.label for _, _, p in rounds])[order]
    a, a_end, b, b_end = truncated(a, a_end, b, b_end, room, seed, epoch)
    starts, ends = np.stack([a, b], axis=1).ravel(), np.stack([a_end, b_end], axis=1).ravel()
    return Plan.of(starts, ends, 2, label, segmented=True)


def truncated(a: Ints, a_end: Ints, b: Ints, b_end: Ints, room: int, seed: int, epoch: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Tokens go one by one from the longer side (B if equal), each from its front or its back by a coin."""
    long_a, long_b = a_end - a, b_end - b
    over = np.maximum(long_a + long_b - room, 0)
    lead = np.minimum(np.abs(long_a - long_b), over)  # the longer side alone gives these
    rest = over - lead
    from_a = np.where(long_a > long_b, lead, 0) + rest // 2
    from_b = np.where(long_a > long_b, 0, lead) + rest - rest // 2
    each = np.arange(len(a))
    front_a = _heads(from_a, bits(seed, Stream.TRUNCATE_A, epoch, each))
    front_b = _heads(from_b, bits(seed, Stream.TRUNCATE_B, epoch, each))
    return a + front_a, a_end - from_a + front_a, b + front_b, b_end - from_b + front_b


def _heads(coins: Ints, dice: Bits) -> Ints:
    """How many of so many coins fall heads."""
    heads = np.zeros_like(coins)
    for nth in range(0, int(coins.max(initial=0)), 64):
        thrown = np.clip(coins - nth, 0, 64).astype(np.uint64)
        fallen = dice if nth == 0 else bits(0, Stream.TRUNCATE_MORE, dice, nth)
        kept = np.where(thrown == 64, fallen, fallen & ((np.uint64(1) << np.minimum(thrown, np.uint64(63))) - np.uint64(1)))
        heads += np.bitwise_count(kept).astype(np.int64)
    return heads
