"""Batch k is a pure function of (corpus, seed, k), and filled to its budget."""

import numpy as np
import pytest

from bertsmith.corpus.collate import Collator
from bertsmith.corpus.loader import BatchLoader, Prefetcher
from bertsmith.corpus.masking import WholeWordMasking
from bertsmith.corpus.sampling import FullSentences, NextSentence
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError


def reading(path, view=None, seed=3, tokens=1024, length=64):
    corpus = Corpus.open(path)
    maker = Collator(path, WholeWordMasking(), 0.15, seed)
    return BatchLoader(maker, view or NextSentence(), np.arange(len(corpus.document_offsets) - 1), length, tokens)


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "lengths", "where", "words", "labels"))


def test_batch_k_needs_no_history(corpus):
    forward = reading(corpus)
    batches = [forward(k) for k in range(3 * forward.batches_per_epoch)]
    for k in (2 * forward.batches_per_epoch + 1, 1, forward.batches_per_epoch):
        assert same(reading(corpus)(k), batches[k])
    assert not same(reading(corpus, seed=4)(0), batches[0])


def test_every_epoch_shows_every_sample_once_within_the_budget(corpus):
    batches = reading(corpus)
    plan, cuts = batches._epoch_index(1)
    assert sorted(np.concatenate(cuts)) == list(range(len(plan)))
    sizes = [plan.lengths[cut].sum() for cut in cuts]
    assert max(sizes) <= 1024 and np.mean(sizes[:-1]) > 1024 - 64


def test_a_pack_is_cls_a_sep_b_sep(corpus):
    batches = reading(corpus)
    tokenizer = batches.collator.corpus.tokenizer
    plan, _ = batches.select_samples(0)
    batch, clean = batches(0), batches.collator._pack(plan)[0]
    ends = batch.lengths.cumsum()
    for i, end in enumerate(ends):
        ids, segments = clean[end - batch.lengths[i] : end], batch.token_type_ids[end - batch.lengths[i] : end]
        a = batches.collator.corpus.tokens[plan.span_starts[2 * i] : plan.span_ends[2 * i]]
        b = batches.collator.corpus.tokens[plan.span_starts[2 * i + 1] : plan.span_ends[2 * i + 1]]
        assert ids.tolist() == [tokenizer.cls_token_id, *a, tokenizer.sep_token_id, *b, tokenizer.sep_token_id]
        assert segments.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_documents_in_one_sequence_are_parted_by_sep(corpus):
    batches = reading(corpus, FullSentences(), length=128, tokens=2048)
    plan, _ = batches.select_samples(0)
    ids = batches.collator._pack(plan)[0]
    assert (ids == batches.collator.corpus.tokenizer.sep_token_id).sum() == len(plan.span_starts) > len(plan)
    assert batches(0).token_type_ids is None


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_change_nothing(corpus, workers):
    batches = reading(corpus)
    with Prefetcher(batches.collator, workers) as ahead:
        order = [*range(2 * batches.batches_per_epoch), 0, 7, 8, 9]  # also after going back
        assert all(same(ahead(k, batches.select_samples), batches(k)) for k in order)


def test_a_change_of_phase_leaves_nothing_behind(corpus):
    short, long = reading(corpus), reading(corpus, length=128, tokens=2048)
    with Prefetcher(short.collator, 2) as ahead:
        for k in range(8):
            phase = short if k < 4 else long
            assert same(ahead(k, phase.select_samples), phase(k))


def test_a_sample_that_cannot_fit_a_batch_is_refused(corpus):
    with pytest.raises(UserError, match=r"64 tokens does not fit a batch of 32; raise train\.batch_tokens"):
        reading(corpus, tokens=32)
