"""Sentence pairs against a loop implementation of BERT's algorithm, and their statistical properties."""

from pathlib import Path

import numpy as np
import pytest

from bertsmith.corpus.sampling import NextSentence, SentenceOrder
from bertsmith.corpus.sampling.sentence_pairs import MAX_SECTION_SENTENCES, truncate_pairs
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.rng import randint, random_bits, uniform
from tests.support.corpora import make_corpus


def brute_force_pairs(corpus, max_length, seed, epoch, style):
    """One document and one chunk at a time, with the same random numbers; pairs before truncation."""
    max_tokens, num_documents, pairs = max_length - 3, len(corpus.document_offsets) - 1, []
    sentences = [(corpus.sentence_offsets[s], corpus.sentence_offsets[s + 1]) for s in range(len(corpus.sentence_offsets) - 1)]
    num_tokens = lambda chunk: sum(b - a for a, b in chunk)
    for document in range(num_documents):
        position, end, round_index = int(corpus.document_offsets[document]), int(corpus.document_offsets[document + 1]), 0
        min_sentences = 1 if style == "google" else 2
        while end - position >= min_sentences:
            bits = lambda purpose, round_index=round_index, document=document: random_bits(
                seed, f"pairs {purpose}", epoch, document, round_index
            )
            length_bits = lambda purpose, document=document, round_index=round_index: random_bits(
                seed, f"pairs {purpose}", epoch, document, 0 if style == "google" else round_index
            )
            target = (
                max_tokens if uniform(length_bits("brief")) >= 0.1 else 2 + int(randint(length_bits("target"), max_tokens - 1))
            )
            chunk = []
            while position + len(chunk) < end and (num_tokens(chunk) < target or len(chunk) < min_sentences):
                chunk.append(sentences[position + len(chunk)])
            if style != "google" and end - position - len(chunk) == 1:
                chunk.append(sentences[end - 1])
            split = 1 if len(chunk) == 1 else 1 + int(randint(bits("middle"), len(chunk) - 1))
            is_random = uniform(bits("away")) < 0.5 or (style == "google" and len(chunk) == 1)
            segment_b = chunk[split:]
            if is_random:
                random_document = sample_other_document(bits, document, num_documents, style)
                rest = sentences[corpus.document_offsets[random_document] : corpus.document_offsets[random_document + 1]]
                rest, segment_b = rest[int(randint(bits("start"), len(rest))) :], []
                while rest and (not segment_b or num_tokens(segment_b) < target - num_tokens(chunk[:split])):
                    segment_b.append(rest.pop(0))
            pairs.append((chunk[0][0], chunk[split - 1][1], segment_b[0][0], segment_b[-1][1], int(is_random)))
            position, round_index = position + (split if is_random else len(chunk)), round_index + 1
    return np.array(pairs)


def sample_other_document(bits, own_document, num_documents, style):
    if style == "google":
        for attempt in range(10):
            other = int(randint(bits(f"other {attempt}"), num_documents))
            if other != own_document:
                break
        return other
    other = int(randint(bits("other 0"), num_documents - 1))
    return other + (other >= own_document)


@pytest.mark.parametrize("style", ["corrected", "google"])
@pytest.mark.parametrize("seed", range(4))
def test_next_sentence_pairs_match_brute_force(style, seed):
    corpus, max_length = make_corpus(25, seed), 64
    expected = brute_force_pairs(corpus, max_length, seed, 3, style)
    index = NextSentence(style=style).build_index(corpus, np.arange(25), max_length, seed, 3)
    truncated = truncate_pairs(*expected[:, :4].T, max_length - 3, seed, 3)
    assert np.array_equal(index.labels, expected[:, 4])
    assert np.array_equal(index.span_starts.reshape(-1, 2), np.stack(truncated[::2], axis=1))
    assert np.array_equal(index.span_ends.reshape(-1, 2), np.stack(truncated[1::2], axis=1))


def test_next_sentence_labels_match_documents():
    corpus = make_corpus(200)
    index = NextSentence().build_index(corpus, np.arange(200), 512, 0, 0)
    document = np.searchsorted(corpus.document_token_offsets, index.span_starts, side="right") - 1
    a, b = document.reshape(-1, 2).T
    assert (a != b)[index.labels == 1].all() and (a == b)[index.labels == 0].all()
    is_complete = index.lengths < 400  # not truncated
    ends, starts = index.span_ends.reshape(-1, 2)[:, 0], index.span_starts.reshape(-1, 2)[:, 1]
    assert (ends == starts)[is_complete & (index.labels == 0)].all()


def test_next_sentence_labels_are_balanced_with_long_sentences():
    """In the published code a chunk of one sentence always gets a random B: over half of the pairs are NotNext."""
    corpus = make_corpus(3000, max_tokens=150, max_sentences=12)
    document_ids = np.arange(3000)
    labels = np.concatenate([NextSentence().build_index(corpus, document_ids, 128, 5, epoch).labels for epoch in range(12)])
    assert len(labels) > 100_000
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    published = NextSentence(style="google").build_index(corpus, document_ids, 128, 5, 0).labels
    assert published.mean() > 0.55


def test_sentence_pairs_fit_max_length_and_are_not_empty():
    corpus = make_corpus(100, max_tokens=300)
    for sampler in (NextSentence(), NextSentence(style="google"), SentenceOrder()):
        for max_length in (16, 64, 128):
            index = sampler.build_index(corpus, np.arange(100), max_length, 0, 0)
            assert index.lengths.max() <= max_length
            assert (index.span_ends > index.span_starts).all()


def test_a_tenth_of_the_sentence_pairs_is_short():
    corpus, document_ids = make_corpus(300, max_tokens=10, max_sentences=600), np.arange(300)
    short = NextSentence().build_index(corpus, document_ids, 128, 0, 0).lengths < 90
    without_short = (
        NextSentence(short_seq_prob=0.0).build_index(corpus, document_ids, 128, 0, 0).lengths < 90
    )  # except at the end of documents
    assert short.mean() - without_short.mean() == pytest.approx(0.1 * 85 / 125, abs=0.02)


def test_sentence_order_pairs_are_consecutive_or_swapped():
    corpus = make_corpus(500)
    index = SentenceOrder().build_index(corpus, np.arange(500), 1024, 0, 0)
    starts, ends = index.span_starts.reshape(-1, 2), index.span_ends.reshape(-1, 2)
    is_in_order, is_swapped = index.labels == 0, index.labels == 1
    assert (ends[is_in_order, 0] == starts[is_in_order, 1]).all() and (ends[is_swapped, 1] == starts[is_swapped, 0]).all()
    assert abs(index.labels.mean() - 0.5) < 4 * 0.5 / len(index) ** 0.5


def test_sentence_pairs_cover_a_very_long_document():
    lengths = np.full(5 * MAX_SECTION_SENTENCES, 7)
    corpus = Corpus(
        Path("made"), np.arange(lengths.sum()), np.append(0, lengths.cumsum()), np.array([0, 10, len(lengths)]), None, {}
    )
    index = SentenceOrder().build_index(corpus, np.arange(2), 128, 0, 0)
    is_read = np.zeros(lengths.sum(), bool)
    for start, end in zip(index.span_starts, index.span_ends, strict=True):
        is_read[start:end] = True
    assert is_read.mean() > 0.9


def test_truncate_pairs_removes_from_the_longer_side_at_both_ends():
    count = 20_000
    zero, (len_a, len_b) = np.zeros(count, np.int64), (100, 40)
    a_start, a_end, b_start, b_end = truncate_pairs(zero, zero + len_a, zero + 1000, zero + 1000 + len_b, 61, 0, 0)
    assert set((a_end - a_start) + (b_end - b_start)) == {61}
    assert set(a_end - a_start) == {31} and set(b_end - b_start) == {30}  # A is shortened until both are equal, then B first
    assert abs(a_start.mean() - (100 - 31) / 2) < 0.2 and abs(a_start.std() - (69 / 4) ** 0.5) < 0.1  # one coin per token
    assert (a_end <= 100).all() and (b_start >= 1000).all()


def test_next_sentence_refuses_a_single_document_and_single_sentences():
    with pytest.raises(UserError, match=r"needs a second document.*objective=mlm"):
        NextSentence().build_index(make_corpus(1), np.arange(1), 128, 0, 0)
    single_sentences = Corpus(Path("made"), np.arange(30), np.arange(0, 31, 3), np.arange(11), None, {})
    with pytest.raises(UserError, match="no document has two sentences"):
        NextSentence().build_index(single_sentences, np.arange(10), 128, 0, 0)
