"""Samplers: every token once, no sample too long, no span across documents, deterministic."""

import numpy as np
import pytest

from bertsmith.corpus.sampling import DocSentences, FullSentences, NextSentence, SentenceOrder, Windows
from tests.support.corpora import make_corpus

SAMPLERS = [Windows(), DocSentences(), FullSentences(), NextSentence(), SentenceOrder()]


@pytest.mark.parametrize("sampler", SAMPLERS[:3], ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize("max_length", [16, 50, 128])
def test_sampler_puts_every_token_in_exactly_one_sample(sampler, max_length):
    corpus = make_corpus(40, max_tokens=200)
    index = sampler.build_index(corpus, np.arange(40), max_length, 0, 0)
    num_samples = np.zeros(len(corpus.tokens), int)
    for start, end in zip(index.span_starts, index.span_ends, strict=True):
        num_samples[start:end] += 1
    assert (num_samples == 1).all()
    assert index.lengths.max() <= max_length


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_sampler_spans_stay_within_the_given_documents(sampler):
    corpus, document_ids = make_corpus(60), np.arange(5, 60, 3)
    index = sampler.build_index(corpus, document_ids, 64, 0, 0)
    first_document = np.searchsorted(corpus.document_token_offsets, index.span_starts, side="right") - 1
    last_document = np.searchsorted(corpus.document_token_offsets, index.span_ends - 1, side="right") - 1
    assert (first_document == last_document).all()
    assert set(first_document) <= set(document_ids)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_sample_index_is_deterministic_and_differs_between_epochs(sampler):
    corpus = make_corpus(60)
    indices = [sampler.build_index(corpus, np.arange(60), 64, *key) for key in ((1, 2), (1, 2), (1, 3), (2, 2))]
    assert np.array_equal(indices[0].span_starts, indices[1].span_starts) and np.array_equal(
        indices[0].span_ends, indices[1].span_ends
    )
    if not isinstance(sampler, DocSentences):  # which has no randomness
        assert not np.array_equal(indices[0].span_starts, indices[2].span_starts)
        assert not np.array_equal(indices[0].span_starts, indices[3].span_starts)


def test_sentence_samplers_keep_sentences_whole():
    corpus = make_corpus(60, max_tokens=30)
    for sampler in (DocSentences(), FullSentences()):
        index = sampler.build_index(corpus, np.arange(60), 64, 0, 0)
        assert (
            np.isin(index.span_starts, corpus.sentence_offsets).all()
            and np.isin(index.span_ends, corpus.sentence_offsets).all()
        )


def test_full_sentences_continue_into_the_next_document():
    corpus = make_corpus(60, max_tokens=12, max_sentences=4)
    full, doc = (sampler.build_index(corpus, np.arange(60), 128, 0, 0) for sampler in (FullSentences(), DocSentences()))
    assert np.diff(full.span_offsets).max() > 1 and np.diff(doc.span_offsets).max() == 1
    assert full.lengths.mean() > 2 * doc.lengths.mean()
