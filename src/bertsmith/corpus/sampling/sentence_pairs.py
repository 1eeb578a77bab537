"""Two runs of sentences: does the second follow the first (BERT), or are they in order (ALBERT)?

The algorithm of the BERT paper's data, for all documents at once: a document goes forward one chunk a round, so that
drawing half a million pairs takes a second, and sample i of an epoch depends on (corpus, seed, epoch) alone.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from ...config import Fraction, Variant
from ...errors import UserError
from ...rng import RandomBits, Stream, randint, random_bits, uniform
from ..store import Corpus
from .base import Ints, SampleIndex

MAX_SECTION_SENTENCES = 1024  # sentences read in one stretch: a library in one document is read at several places at once


class NextSentence(Variant, frozen=True):
    """Half the time B follows A in its document (label 0), else B is a run from another document (label 1)."""

    short: Annotated[Fraction, "share of samples with a shorter target length"] = 0.1
    style: Annotated[Literal["corrected", "google"], "google: lone sentences always get a random B, as published"] = "corrected"

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        if len(document_ids) < 2:
            raise UserError(f"{corpus.path}: next-sentence prediction needs a second document to draw from; put a blank line "
                           "between documents and run `prepare` again, or choose objective=masked")  # fmt: skip
        walk = _ChunkReader(corpus, document_ids, max_length - 3, self.short, seed, epoch, self.style)
        return _pairs_to_index(corpus, walk.read_pairs(self._make_pairs), max_length - 3, seed, epoch)

    def _make_pairs(self, reader: "_ChunkReader", chunk: "_Chunk") -> "_SentencePairs":
        alone = chunk.stop - chunk.start == 1
        away = uniform(reader.random_bits(Stream.PAIR_IS_RANDOM, chunk)) < 0.5
        if self.style == "google":
            away |= alone
        middle = chunk.start + np.where(
            alone, 1, 1 + randint(reader.random_bits(Stream.PAIR_SPLIT, chunk), chunk.stop - chunk.start - 1)
        )
        other, other_stop = reader.sample_other_document(
            chunk, reader.sentence_offsets[middle] - reader.sentence_offsets[chunk.start], self.style
        )
        second, stop = np.where(away, other, middle), np.where(away, other_stop, chunk.stop)
        after = np.where(away, middle, chunk.stop)  # what A's chunk did not use is put back
        return _SentencePairs(chunk.start, middle, second, stop, away.astype(np.int64), after)


class SentenceOrder(Variant, frozen=True):
    """Two runs that follow one another (label 0), or the same two swapped (label 1)."""

    short: Annotated[Fraction, "share of samples with a shorter target length"] = 0.1

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        walk = _ChunkReader(corpus, document_ids, max_length - 3, self.short, seed, epoch, "corrected")
        return _pairs_to_index(corpus, walk.read_pairs(self._make_pairs), max_length - 3, seed, epoch)

    def _make_pairs(self, reader: "_ChunkReader", chunk: "_Chunk") -> "_SentencePairs":
        swap = uniform(reader.random_bits(Stream.PAIR_IS_RANDOM, chunk)) < 0.5
        middle = chunk.start + 1 + randint(reader.random_bits(Stream.PAIR_SPLIT, chunk), chunk.stop - chunk.start - 1)
        first, first_stop = np.where(swap, middle, chunk.start), np.where(swap, chunk.stop, middle)
        second, second_stop = np.where(swap, chunk.start, middle), np.where(swap, middle, chunk.stop)
        return _SentencePairs(first, first_stop, second, second_stop, swap.astype(np.int64), chunk.stop)


@dataclass(frozen=True)
class _Chunk:
    """One round: for each stretch still being read, sentences start..stop, about `target` tokens of them."""

    section: Ints
    start: Ints
    stop: Ints
    target_length: Ints
    round_index: int


@dataclass(frozen=True)
class _SentencePairs:
    first: Ints
    first_stop: Ints
    second: Ints
    second_stop: Ints
    label: Ints
    next_start: Ints  # the sentence to go on from


class _ChunkReader:
    """Reads every stretch of the documents chunk by chunk, all of them abreast."""

    def __init__(
        self, corpus: Corpus, document_ids: Ints, max_tokens: int, short_seq_prob: float, seed: int, epoch: int, style: str
    ) -> None:
        self.sentence_offsets, self.max_tokens, self.short_seq_prob, self.seed, self.epoch = (
            corpus.sentence_offsets,
            max_tokens,
            short_seq_prob,
            seed,
            epoch,
        )
        self.document_starts, self.document_ends = (
            corpus.document_offsets[document_ids],
            corpus.document_offsets[document_ids + 1],
        )
        self.allow_single_sentence = style == "google"  # a chunk of one sentence will do
        longest = np.iinfo(np.int64).max if self.allow_single_sentence else MAX_SECTION_SENTENCES
        sizes = -(-(self.document_ends - self.document_starts) // longest)
        self.section_document = np.repeat(np.arange(len(document_ids)), sizes)  # of each stretch, among those given
        nth = np.arange(len(self.section_document)) - np.repeat(sizes.cumsum() - sizes, sizes)
        self.section_position = self.document_starts[self.section_document] + nth * (
            0 if self.allow_single_sentence else MAX_SECTION_SENTENCES
        )
        self.section_ends = (
            self.document_ends[self.section_document]
            if self.allow_single_sentence
            else np.minimum(self.section_position + MAX_SECTION_SENTENCES, self.document_ends[self.section_document])
        )

    def read_pairs(self, make_pairs) -> list[tuple[Ints, int, _SentencePairs]]:  # type: ignore[no-untyped-def]
        """What `pair` made of each round, until all is read."""
        found: list[tuple[Ints, int, _SentencePairs]] = []
        least = 1 if self.allow_single_sentence else 2
        live = np.flatnonzero(self.section_ends - self.section_position >= least)
        while len(live):
            chunk = self._next_chunk(live, len(found), least)
            pairs = make_pairs(self, chunk)
            found.append((live, len(found), pairs))
            self.section_position[live] = pairs.next_start
            live = live[self.section_ends[live] - pairs.next_start >= least]
        return found

    def _next_chunk(self, sections: Ints, round_index: int, min_sentences: int) -> _Chunk:
        start, stop = self.section_position[sections], self.section_ends[sections]
        turn = 0 if self.allow_single_sentence else round_index  # the published code draws one length for a whole document
        brief = uniform(self._random_bits(Stream.PAIR_SHORT, sections, turn)) < self.short_seq_prob
        target = np.where(
            brief,
            2 + randint(self._random_bits(Stream.PAIR_TARGET_LENGTH, sections, turn), self.max_tokens - 1),
            self.max_tokens,
        )
        full = np.searchsorted(self.sentence_offsets, self.sentence_offsets[start] + target, side="left")
        end = np.minimum(np.maximum(full, start + min_sentences), stop)
        if not self.allow_single_sentence:
            end = np.where(stop - end == 1, stop, end)  # a last sentence alone would never be read
        return _Chunk(sections, start, end, target, round_index)

    def sample_other_document(self, chunk: _Chunk, used_tokens: Ints, style: str) -> tuple[Ints, Ints]:
        """A run from another document, as long as A leaves room for."""
        own, count = self.section_document[chunk.section], len(self.document_starts)
        if style == "google":  # ten tries to miss A's own document, then it is taken
            other = randint(self.random_bits(f"{Stream.PAIR_DOCUMENT} 0", chunk), count)
            for attempt in range(1, 10):
                other = np.where(
                    other == own, randint(self.random_bits(f"{Stream.PAIR_DOCUMENT} {attempt}", chunk), count), other
                )
        else:
            other = randint(self.random_bits(f"{Stream.PAIR_DOCUMENT} 0", chunk), count - 1)
            other += other >= own
        begin, end = self.document_starts[other], self.document_ends[other]
        start = begin + randint(self.random_bits(Stream.PAIR_START, chunk), end - begin)
        full = np.searchsorted(
            self.sentence_offsets, self.sentence_offsets[start] + chunk.target_length - used_tokens, side="left"
        )
        return start, np.minimum(np.maximum(full, start + 1), end)

    def random_bits(self, purpose: str, chunk: _Chunk) -> RandomBits:
        return self._random_bits(purpose, chunk.section, chunk.round_index)

    def _random_bits(self, purpose: str, section: Ints, round_index: int) -> RandomBits:
        return random_bits(self.seed, purpose, self.epoch, section, round_index)


def _pairs_to_index(
    corpus: Corpus, rounds: list[tuple[Ints, int, _SentencePairs]], max_tokens: int, seed: int, epoch: int
) -> SampleIndex:
    if not rounds:
        raise UserError(f"{corpus.path}: no document has two sentences, so no pair can be made; choose objective=masked, or "
                       "prepare text with several sentences a document")  # fmt: skip
    stretch = np.concatenate([live for live, _, _ in rounds])
    nth = np.concatenate([np.full(len(live), number) for live, number, _ in rounds])
    order = np.lexsort([nth, stretch])
    names = ("first", "first_stop", "second", "second_stop")
    a, a_end, b, b_end = (corpus.sentence_offsets[np.concatenate([getattr(p, n) for _, _, p in rounds])[order]] for n in names)
    label = np.concatenate([p.label for _, _, p in rounds])[order]
    a, a_end, b, b_end = truncate_pairs(a, a_end, b, b_end, max_tokens, seed, epoch)
    starts, ends = np.stack([a, b], axis=1).ravel(), np.stack([a_end, b_end], axis=1).ravel()
    return SampleIndex.from_spans(starts, ends, 2, label, has_segments=True)


def truncate_pairs(
    a_start: Ints, a_end: Ints, b_start: Ints, b_end: Ints, max_tokens: int, seed: int, epoch: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Tokens go one by one from the longer side (B if equal), each from its front or its back by a coin."""
    long_a, long_b = a_end - a_start, b_end - b_start
    over = np.maximum(long_a + long_b - max_tokens, 0)
    lead = np.minimum(np.abs(long_a - long_b), over)  # the longer side alone gives these
    rest = over - lead
    from_a = np.where(long_a > long_b, lead, 0) + rest // 2
    from_b = np.where(long_a > long_b, 0, lead) + rest - rest // 2
    each = np.arange(len(a_start))
    front_a = _count_heads(from_a, random_bits(seed, Stream.TRUNCATE_A, epoch, each))
    front_b = _count_heads(from_b, random_bits(seed, Stream.TRUNCATE_B, epoch, each))
    return a_start + front_a, a_end - from_a + front_a, b_start + front_b, b_end - from_b + front_b


def _count_heads(num_coins: Ints, draws: RandomBits) -> Ints:
    """How many of so many coins fall heads."""
    heads = np.zeros_like(num_coins)
    for nth in range(0, int(num_coins.max(initial=0)), 64):
        thrown = np.clip(num_coins - nth, 0, 64).astype(np.uint64)
        fallen = draws if nth == 0 else random_bits(0, Stream.TRUNCATE_MORE, draws, nth)
        kept = np.where(thrown == 64, fallen, fallen & ((np.uint64(1) << np.minimum(thrown, np.uint64(63))) - np.uint64(1)))
        heads += np.bitwise_count(kept).astype(np.int64)
    return heads
