"""Packed windows: each document cut into runs of tokens of one length, at other places every epoch."""

from typing import Annotated

import numpy as np

from ...config import Variant
from ...rng import Stream, permutation, randint, random_bits
from ..store import Corpus
from .base import Ints, SampleIndex, concat_ranges


class Windows(Variant, frozen=True):
    """Runs of tokens within a document, wherever sentences end."""

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        room = max_length - 2
        begin, end = corpus.document_token_offsets[document_ids], corpus.document_token_offsets[document_ids + 1]
        lead = randint(
            random_bits(seed, Stream.WINDOW_OFFSET, epoch, document_ids), np.minimum(room, end - begin)
        )  # the first cut moves
        sizes = -(-(end - begin - lead) // room) + (lead > 0)
        owner = np.repeat(np.arange(len(document_ids)), sizes)
        nth = concat_ranges(np.zeros(len(document_ids), np.int64), sizes) - (lead > 0)[owner]
        starts = np.maximum(begin[owner], begin[owner] + lead[owner] + nth * room)
        ends = np.minimum(end[owner], begin[owner] + lead[owner] + (nth + 1) * room)
        return SampleIndex.from_spans(starts, ends, 1)


DOCUMENTS_PER_LANE = 64  # documents that follow one another; lanes are filled side by side


class DocSentences(Variant, frozen=True):
    """As many whole sentences of one document as fit."""

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        starts, ends = _pack_sentences(
            corpus.sentence_offsets,
            corpus.document_token_offsets[document_ids],
            corpus.document_token_offsets[document_ids + 1],
            max_length - 2,
        )
        return SampleIndex.from_spans(starts, ends, 1)


class FullSentences(Variant, frozen=True):
    """As many whole sentences as fit; at a document's end the next one follows, a [SEP] between them."""

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        order = document_ids[permutation(len(document_ids), seed, Stream.DOCUMENT_ORDER, epoch)]
        first, counts = corpus.document_offsets[order], np.diff(corpus.document_offsets)[order]
        sentences = concat_ranges(first, counts)
        sizes = np.diff(corpus.sentence_offsets)[sentences]
        opening = np.append(0, counts.cumsum())[:-1]  # the first sentence of each document, in this order
        sizes[opening] += 1  # for the [SEP] before it
        virtual = np.append(0, sizes.cumsum())  # the documents as one stream
        borders = np.append(virtual[opening], virtual[-1])
        lanes = np.append(borders[:-1][::DOCUMENTS_PER_LANE], borders[-1])
        starts, ends = _pack_sentences(virtual, lanes[:-1], lanes[1:], max_length - 2)
        return _split_at_documents(borders, corpus.document_token_offsets[order], starts, ends)


def _pack_sentences(sentence_offsets: Ints, range_starts: Ints, range_ends: Ints, max_tokens: int) -> tuple[Ints, Ints]:
    """Each stretch begin..end in runs of at most `room` tokens that end with a sentence, wherever one ends in time."""
    at, found = range_starts.copy(), []
    live = np.flatnonzero(at < range_ends)
    while len(live):
        here = at[live]
        last = sentence_offsets[np.searchsorted(sentence_offsets, here + max_tokens, side="right") - 1]
        last = np.minimum(np.where(last > here, last, here + max_tokens), range_ends[live])  # a sentence too long is cut
        found.append((live, here, last))
        at[live] = last
        live = live[last < range_ends[live]]
    owner, starts, ends = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(owner, kind="stable")
    return starts[order], ends[order]


def _split_at_documents(document_borders: Ints, document_starts: Ints, run_starts: Ints, run_ends: Ints) -> SampleIndex:
    """Runs of the stream to spans of the corpus; the stream's first place in a document is its [SEP]."""
    first = np.searchsorted(document_borders, run_starts, side="right") - 1
    last = np.searchsorted(document_borders, run_ends, side="left")
    sizes = last - first
    run, document = np.repeat(np.arange(len(run_starts)), sizes), concat_ranges(first, sizes)
    begin = (
        np.maximum(run_starts[run], document_borders[document] + 1) - document_borders[document] - 1 + document_starts[document]
    )
    stop = (
        np.minimum(run_ends[run], document_borders[document + 1]) - document_borders[document] - 1 + document_starts[document]
    )
    kept = stop > begin  # a run may end with nothing but a document's [SEP]
    sizes = np.bincount(run[kept], minlength=len(run_starts))
    return SampleIndex.from_spans(begin[kept], stop[kept], sizes[sizes > 0])


class Streams(Variant, frozen=True):
    """Windows in the order of the text, documents in an order of the epoch's own; a batch has one of each stream.

    `Plan.flow` is where a sample ends in the corpus, and where the one it goes on from did: whatever the length is then.
    """

    across: Annotated[bool, "what is remembered goes on from a document into the next, as if they were one text"] = False

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        order = document_ids[permutation(len(document_ids), seed, Stream.DOCUMENT_ORDER, epoch)]
        plan = Windows().build_index(corpus, order, max_length, seed, epoch)
        borders = corpus.document_token_offsets
        opens = borders[np.searchsorted(borders, plan.span_starts)] == plan.span_starts
        before = np.where(opens & (not self.across), -1, np.concatenate([[-1], plan.span_ends])[:-1])
        return SampleIndex(
            plan.span_starts,
            plan.span_ends,
            plan.span_offsets,
            plan.sample_ids,
            stream_positions=np.stack([plan.span_ends, before], -1),
        )

    def batch_samples(self, num_samples: int, batch_size: int) -> list[Ints]:
        """The samples of each batch: one of every stream, a stream being a run of samples; the last ones may be shorter."""
        batch_size = min(batch_size, num_samples)
        sizes = num_samples // max(batch_size, 1) + (np.arange(batch_size) < num_samples % max(batch_size, 1))
        begins = sizes.cumsum() - sizes
        return [begins[sizes > number] + number for number in range(int(sizes.max(initial=0)))]
