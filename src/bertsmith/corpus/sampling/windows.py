"""Samplers of contiguous text: fixed-length windows, whole sentences (RoBERTa), and consecutive windows (Transformer-XL)."""

from typing import Annotated

import numpy as np

from ...config import Variant
from ...rng import Stream, permutation, randint, random_bits
from ..store import Corpus
from .base import Ints, SampleIndex, concat_ranges

DOCUMENTS_PER_LANE = 64  # consecutive documents packed as one sequence; lanes are packed in parallel


class Windows(Variant, frozen=True):
    """Fixed-length windows within a document, regardless of sentences, at a random offset each epoch."""

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        max_tokens = max_length - 2
        document_start, document_end = (
            corpus.document_token_offsets[document_ids],
            corpus.document_token_offsets[document_ids + 1],
        )
        # Length of the first window.
        offset = randint(
            random_bits(seed, Stream.WINDOW_OFFSET, epoch, document_ids), np.minimum(max_tokens, document_end - document_start)
        )
        num_windows = -(-(document_end - document_start - offset) // max_tokens) + (offset > 0)
        document = np.repeat(np.arange(len(document_ids)), num_windows)
        window = concat_ranges(np.zeros(len(document_ids), np.int64), num_windows) - (offset > 0)[document]
        starts = np.maximum(document_start[document], document_start[document] + offset[document] + window * max_tokens)
        ends = np.minimum(document_end[document], document_start[document] + offset[document] + (window + 1) * max_tokens)
        return SampleIndex.from_spans(starts, ends, 1)


class DocSentences(Variant, frozen=True):
    """As many whole sentences of one document as fit (RoBERTa's DOC-SENTENCES, Liu et al. 2019, section 4.2)."""

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        starts, ends = _pack_sentences(
            corpus.sentence_offsets,
            corpus.document_token_offsets[document_ids],
            corpus.document_token_offsets[document_ids + 1],
            max_length - 2,
        )
        return SampleIndex.from_spans(starts, ends, 1)


class FullSentences(Variant, frozen=True):
    """As many whole sentences as fit, across documents with a [SEP] between them (RoBERTa's FULL-SENTENCES)."""

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        order = document_ids[permutation(len(document_ids), seed, Stream.DOCUMENT_ORDER, epoch)]
        first_sentence, counts = corpus.document_offsets[order], np.diff(corpus.document_offsets)[order]
        sentences = concat_ranges(first_sentence, counts)
        sizes = np.diff(corpus.sentence_offsets)[sentences]
        first_of_document = np.append(0, counts.cumsum())[:-1]  # index of the first sentence of each document
        sizes[first_of_document] += 1  # for the [SEP] before the document
        stream_offsets = np.append(0, sizes.cumsum())  # the documents as one stream, [SEP] included
        document_borders = np.append(stream_offsets[first_of_document], stream_offsets[-1])
        lanes = np.append(document_borders[:-1][::DOCUMENTS_PER_LANE], document_borders[-1])
        starts, ends = _pack_sentences(stream_offsets, lanes[:-1], lanes[1:], max_length - 2)
        return _split_at_documents(document_borders, corpus.document_token_offsets[order], starts, ends)


class Streams(Variant, frozen=True):
    """Consecutive windows for recurrent models (Transformer-XL); documents are shuffled each epoch.

    A batch holds one window of each stream. `SampleIndex.stream_positions` says where a sample ends in the corpus and where
    the sample it continues ended, which identifies its memory even if the window length changes.
    """

    across: Annotated[bool, "carry the memory over document boundaries, as if the corpus were one text"] = False

    def build_index(self, corpus: Corpus, document_ids: Ints, max_length: int, seed: int, epoch: int) -> SampleIndex:
        order = document_ids[permutation(len(document_ids), seed, Stream.DOCUMENT_ORDER, epoch)]
        index = Windows().build_index(corpus, order, max_length, seed, epoch)
        boundaries = corpus.document_token_offsets
        starts_document = boundaries[np.searchsorted(boundaries, index.span_starts)] == index.span_starts
        previous_ends = np.where(starts_document & (not self.across), -1, np.concatenate([[-1], index.span_ends])[:-1])
        return SampleIndex(
            index.span_starts,
            index.span_ends,
            index.span_offsets,
            index.sample_ids,
            stream_positions=np.stack([index.span_ends, previous_ends], -1),
        )

    def batch_samples(self, num_samples: int, batch_size: int) -> list[Ints]:
        """Sample indices of each batch: one per stream, a stream being consecutive samples; the last batch may be smaller."""
        batch_size = min(batch_size, num_samples)
        stream_lengths = num_samples // max(batch_size, 1) + (np.arange(batch_size) < num_samples % max(batch_size, 1))
        stream_starts = stream_lengths.cumsum() - stream_lengths
        return [stream_starts[stream_lengths > step] + step for step in range(int(stream_lengths.max(initial=0)))]


def _pack_sentences(sentence_offsets: Ints, range_starts: Ints, range_ends: Ints, max_tokens: int) -> tuple[Ints, Ints]:
    """Divide each range into runs of at most `max_tokens` that end at a sentence boundary; longer sentences are split."""
    position, runs = range_starts.copy(), []
    active = np.flatnonzero(position < range_ends)
    while len(active):
        run_starts = position[active]
        run_ends = sentence_offsets[np.searchsorted(sentence_offsets, run_starts + max_tokens, side="right") - 1]
        # A longer sentence is split.
        run_ends = np.minimum(np.where(run_ends > run_starts, run_ends, run_starts + max_tokens), range_ends[active])
        runs.append((active, run_starts, run_ends))
        position[active] = run_ends
        active = active[run_ends < range_ends[active]]
    range_index, starts, ends = (np.concatenate(part) for part in zip(*runs, strict=True))
    order = np.argsort(range_index, kind="stable")
    return starts[order], ends[order]


def _split_at_documents(document_borders: Ints, document_starts: Ints, run_starts: Ints, run_ends: Ints) -> SampleIndex:
    """Map runs of the stream to spans of the corpus, split at documents; each document begins with its [SEP] in the stream."""
    first = np.searchsorted(document_borders, run_starts, side="right") - 1
    last = np.searchsorted(document_borders, run_ends, side="left")
    spans_per_run = last - first
    run, document = np.repeat(np.arange(len(run_starts)), spans_per_run), concat_ranges(first, spans_per_run)
    span_starts = (
        np.maximum(run_starts[run], document_borders[document] + 1) - document_borders[document] - 1 + document_starts[document]
    )
    span_ends = (
        np.minimum(run_ends[run], document_borders[document + 1]) - document_borders[document] - 1 + document_starts[document]
    )
    is_non_empty = span_ends > span_starts  # a run may end with just the [SEP] of a document
    spans_per_run = np.bincount(run[is_non_empty], minlength=len(run_starts))
    return SampleIndex.from_spans(span_starts[is_non_empty], span_ends[is_non_empty], spans_per_run[spans_per_run > 0])
