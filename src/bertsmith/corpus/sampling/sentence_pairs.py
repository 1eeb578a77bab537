"""Sentence-pair samples for next-sentence prediction (BERT) and sentence-order prediction (ALBERT, Lan et al. 2020).

The algorithm of BERT's create_pretraining_data.py, vectorized over documents: each round takes one chunk of sentences from
every document, so that half a million pairs take a second. Sample i of an epoch depends on (corpus, seed, epoch) only.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from ...config import Fraction, Variant
from ...errors import UserError
from ...rng import RandomBits, Stream, randint, random_bits, uniform
from ..store import Corpus
from .base import Ints, SampleIndex

PairStyle = Literal["corrected", "google"]
MAX_SECTION_SENTENCES = 1024  # longer documents are divided into sections that are read in parallel


class NextSentence(Variant, frozen=True):
    """Next-sentence prediction: B follows A (label 0), or is from another document (label 1), with probability 1/2 each."""

    short_seq_prob: Annotated[Fraction, "probability of a sample with a shorter target length (0.1 in BERT)"] = 0.1
    style: Annotated[PairStyle, "google: as in the BERT code, a single-sentence chunk always gets a random B"] = "corrected"

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        if len(document_ids) < 2:
            raise UserError(f"{corpus.path}: next-sentence prediction needs a second document for negative "
                           "pairs; put a blank line between documents, run `prepare` again, or use objective=mlm")  # fmt: skip
        reader = _ChunkReader(corpus, document_ids, max_length - 3, self.short_seq_prob, seed, epoch, self.style)
        return _pairs_to_index(corpus, reader.read_pairs(self._make_pairs), max_length - 3, seed, epoch)

    def _make_pairs(self, reader: "_ChunkReader", chunk: "_Chunk") -> "_SentencePairs":
        is_single = chunk.stop - chunk.start == 1
        is_random = uniform(reader.random_bits(Stream.PAIR_IS_RANDOM, chunk)) < 0.5
        if self.style == "google":
            is_random |= is_single
        split = chunk.start + np.where(
            is_single, 1, 1 + randint(reader.random_bits(Stream.PAIR_SPLIT, chunk), chunk.stop - chunk.start - 1)
        )
        random_start, random_stop = reader.sample_other_document(
            chunk, reader.sentence_offsets[split] - reader.sentence_offsets[chunk.start], self.style
        )
        second, stop = np.where(is_random, random_start, split), np.where(is_random, random_stop, chunk.stop)
        next_start = np.where(is_random, split, chunk.stop)  # sentences of the chunk that A did not use are put back
        return _SentencePairs(chunk.start, split, second, stop, is_random.astype(np.int64), next_start)


class SentenceOrder(Variant, frozen=True):
    """Sentence-order prediction: two consecutive segments (label 0), or the same two swapped (label 1)."""

    short_seq_prob: Annotated[Fraction, "probability of a sample with a shorter target length (0.1 in BERT)"] = 0.1

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        reader = _ChunkReader(corpus, document_ids, max_length - 3, self.short_seq_prob, seed, epoch, "corrected")
        return _pairs_to_index(corpus, reader.read_pairs(self._make_pairs), max_length - 3, seed, epoch)

    def _make_pairs(self, reader: "_ChunkReader", chunk: "_Chunk") -> "_SentencePairs":
        is_swapped = uniform(reader.random_bits(Stream.PAIR_IS_RANDOM, chunk)) < 0.5
        split = chunk.start + 1 + randint(reader.random_bits(Stream.PAIR_SPLIT, chunk), chunk.stop - chunk.start - 1)
        first, first_stop = np.where(is_swapped, split, chunk.start), np.where(is_swapped, chunk.stop, split)
        second, second_stop = np.where(is_swapped, chunk.start, split), np.where(is_swapped, split, chunk.stop)
        return _SentencePairs(first, first_stop, second, second_stop, is_swapped.astype(np.int64), chunk.stop)


@dataclass(frozen=True)
class _Chunk:
    """One round: for each active section, sentences start to stop, of about `target_length` tokens."""

    section: Ints
    start: Ints
    stop: Ints
    target_length: Ints
    round_index: int


@dataclass(frozen=True)
class _SentencePairs:
    """(pairs,) each: sentence ranges of A (first) and B (second), and their label."""

    first: Ints
    first_stop: Ints
    second: Ints
    second_stop: Ints
    label: Ints
    next_start: Ints  # sentence at which the section continues


class _ChunkReader:
    """Reads all sections of the documents in parallel, one chunk per round."""

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
        self.allow_single_sentence = style == "google"  # chunks of one sentence are allowed
        section_size = np.iinfo(np.int64).max if self.allow_single_sentence else MAX_SECTION_SENTENCES
        sections_per_document = -(-(self.document_ends - self.document_starts) // section_size)
        # (sections,): index into document_ids.
        self.section_document = np.repeat(np.arange(len(document_ids)), sections_per_document)
        section_index = np.arange(len(self.section_document)) - np.repeat(
            sections_per_document.cumsum() - sections_per_document, sections_per_document
        )
        self.section_position = self.document_starts[self.section_document] + section_index * (
            0 if self.allow_single_sentence else MAX_SECTION_SENTENCES
        )
        self.section_ends = (
            self.document_ends[self.section_document]
            if self.allow_single_sentence
            else np.minimum(self.section_position + MAX_SECTION_SENTENCES, self.document_ends[self.section_document])
        )

    def read_pairs(self, make_pairs) -> list[tuple[Ints, int, _SentencePairs]]:  # type: ignore[no-untyped-def]
        """(sections, round, pairs) of each round, until every section is read."""
        rounds: list[tuple[Ints, int, _SentencePairs]] = []
        min_sentences = 1 if self.allow_single_sentence else 2
        active = np.flatnonzero(self.section_ends - self.section_position >= min_sentences)
        while len(active):
            chunk = self._next_chunk(active, len(rounds), min_sentences)
            pairs = make_pairs(self, chunk)
            rounds.append((active, len(rounds), pairs))
            self.section_position[active] = pairs.next_start
            active = active[self.section_ends[active] - pairs.next_start >= min_sentences]
        return rounds

    def _next_chunk(self, sections: Ints, round_index: int, min_sentences: int) -> _Chunk:
        start, stop = self.section_position[sections], self.section_ends[sections]
        # The published code samples one target length per document.
        length_round = 0 if self.allow_single_sentence else round_index
        is_short = uniform(self._random_bits(Stream.PAIR_SHORT, sections, length_round)) < self.short_seq_prob
        target_length = np.where(
            is_short,
            2 + randint(self._random_bits(Stream.PAIR_TARGET_LENGTH, sections, length_round), self.max_tokens - 1),
            self.max_tokens,
        )
        full = np.searchsorted(self.sentence_offsets, self.sentence_offsets[start] + target_length, side="left")
        end = np.minimum(np.maximum(full, start + min_sentences), stop)
        if not self.allow_single_sentence:
            end = np.where(stop - end == 1, stop, end)  # a single last sentence would never be used
        return _Chunk(sections, start, end, target_length, round_index)

    def sample_other_document(self, chunk: _Chunk, used_tokens: Ints, style: str) -> tuple[Ints, Ints]:
        """Sentence range of a random document other than A's, of about target_length - used_tokens tokens."""
        own_document, num_documents = self.section_document[chunk.section], len(self.document_starts)
        if style == "google":  # up to ten attempts to avoid A's own document
            other = randint(self.random_bits(f"{Stream.PAIR_DOCUMENT} 0", chunk), num_documents)
            for attempt in range(1, 10):
                other = np.where(
                    other == own_document,
                    randint(self.random_bits(f"{Stream.PAIR_DOCUMENT} {attempt}", chunk), num_documents),
                    other,
                )
        else:
            other = randint(self.random_bits(f"{Stream.PAIR_DOCUMENT} 0", chunk), num_documents - 1)
            other += other >= own_document
        document_start, end = self.document_starts[other], self.document_ends[other]
        start = document_start + randint(self.random_bits(Stream.PAIR_START, chunk), end - document_start)
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
        raise UserError(f"{corpus.path}: no document has two sentences, so there are no sentence pairs; use objective=mlm, or "
                       "prepare a corpus with several sentences per document")  # fmt: skip
    section = np.concatenate([sections for sections, _, _ in rounds])
    round_index = np.concatenate([np.full(len(sections), index) for sections, index, _ in rounds])
    order = np.lexsort([round_index, section])
    names = ("first", "first_stop", "second", "second_stop")
    a, a_end, b, b_end = (
        corpus.sentence_offsets[np.concatenate([getattr(pairs, name) for _, _, pairs in rounds])[order]] for name in names
    )
    label = np.concatenate([pairs.label for _, _, pairs in rounds])[order]
    a, a_end, b, b_end = truncate_pairs(a, a_end, b, b_end, max_tokens, seed, epoch)
    starts, ends = np.stack([a, b], axis=1).ravel(), np.stack([a_end, b_end], axis=1).ravel()
    return SampleIndex.from_spans(starts, ends, 2, label, has_segments=True)


def truncate_pairs(
    a_start: Ints, a_end: Ints, b_start: Ints, b_end: Ints, max_tokens: int, seed: int, epoch: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Truncate pairs to `max_tokens`: tokens are removed one by one from the longer side (B if equal), each from the front
    or the back with probability 1/2. Token positions in and out."""
    len_a, len_b = a_end - a_start, b_end - b_start
    excess = np.maximum(len_a + len_b - max_tokens, 0)
    from_longer = np.minimum(np.abs(len_a - len_b), excess)  # removed from the longer side before both are equal
    shared = excess - from_longer
    from_a = np.where(len_a > len_b, from_longer, 0) + shared // 2
    from_b = np.where(len_a > len_b, 0, from_longer) + shared - shared // 2
    pair_index = np.arange(len(a_start))
    front_a = _count_heads(from_a, random_bits(seed, Stream.TRUNCATE_A, epoch, pair_index))
    front_b = _count_heads(from_b, random_bits(seed, Stream.TRUNCATE_B, epoch, pair_index))
    return a_start + front_a, a_end - from_a + front_a, b_start + front_b, b_end - from_b + front_b


def _count_heads(num_coins: Ints, draws: RandomBits) -> Ints:
    """Number of heads among `num_coins` fair coins, per element; the first 64 are the bits of `draws`."""
    heads = np.zeros_like(num_coins)
    for first in range(0, int(num_coins.max(initial=0)), 64):
        coins_left = np.clip(num_coins - first, 0, 64).astype(np.uint64)
        bits = draws if first == 0 else random_bits(0, Stream.TRUNCATE_MORE, draws, first)
        used_bits = np.where(
            coins_left == 64, bits, bits & ((np.uint64(1) << np.minimum(coins_left, np.uint64(63))) - np.uint64(1))
        )
        heads += np.bitwise_count(used_bits).astype(np.int64)
    return heads
