"""Batch k is a pure function of (corpus, seed, k), and filled to its budget."""

import numpy as np
import pytest

from bertsmith.corpus.collate import Maker
from bertsmith.corpus.loader import Ahead, Batches
from bertsmith.corpus.masking import WholeWords
from bertsmith.corpus.sampling import FullSentences, NextSentence
from bertsmith.corpus.store import Corpus
from bertsmith.errors import BadInput


def reading(path, view=None, seed=3, tokens=1024, length=64):
    corpus = Corpus.open(path)
    maker = Maker(path, WholeWords(), 0.15, seed)
    return Batches(maker, view or NextSentence(), np.arange(len(corpus.documents) - 1), length, tokens)


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "lengths", "where", "words", "labels"))


def test_batch_k_needs_no_history(corpus):
    forward = reading(corpus)
    batches = [forward(k) for k in range(3 * forward.an_epoch)]
    for k in (2 * forward.an_epoch + 1, 1, forward.an_epoch):
        assert same(reading(corpus)(k), batches[k])
    assert not same(reading(corpus, seed=4)(0), batches[0])


def test_every_epoch_shows_every_sample_once_within_the_budget(corpus):
    batches = reading(corpus)
    plan, cuts = batches._planned(1)
    assert sorted(np.concatenate(cuts)) == list(range(len(plan)))
    sizes = [plan.lengths[cut].sum() for cut in cuts]
    assert max(sizes) <= 1024 and np.mean(sizes[:-1]) > 1024 - 64


def test_a_pack_is_cls_a_sep_b_sep(corpus):
    batches = reading(corpus)
    tokenizer = batches.maker.corpus.tokenizer
    plan, _ = batches.rows(0)
    batch, clean = batches(0), batches.maker._packed(plan)[0]
    ends = batch.lengths.cumsum()
    for i, end in enumerate(ends):
        ids, segments = clean[end - batch.lengths[i] : end], batch.segments[end - batch.lengths[i] : end]
        a = batches.maker.corpus.tokens[plan.starts[2 * i] : plan.ends[2 * i]]
        b = batches.maker.corpus.tokens[plan.starts[2 * i + 1] : plan.ends[2 * i + 1]]
        assert ids.tolist() == [tokenizer.cls, *a, tokenizer.sep, *b, tokenizer.sep]
        assert segments.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_documents_in_one_sequence_are_parted_by_sep(corpus):
    batches = reading(corpus, FullSentences(), length=128, tokens=2048)
    plan, _ = batches.rows(0)
    ids = batches.maker._packed(plan)[0]
    assert (ids == batches.maker.corpus.tokenizer.sep).sum() == len(plan.starts) > len(plan)
    assert batches(0).segments is None


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_change_nothing(corpus, workers):
    batches = reading(corpus)
    with Ahead(batches.maker, workers) as ahead:
        order = [*range(2 * batches.an_epoch), 0, 7, 8, 9]  # also after going back
        assert all(same(ahead(k, batches.rows), batches(k)) for k in order)


def test_a_change_of_phase_leaves_nothing_behind(corpus):
    short, long = reading(corpus), reading(corpus, length=128, tokens=2048)
    with Ahead(short.maker, 2) as ahead:
        for k in range(8):
            phase = short if k < 4 else long
            assert same(ahead(k, phase.rows), phase(k))


def test_a_sample_that_cannot_fit_a_batch_is_refused(corpus):
    with pytest.raises(BadInput, match=r"64 tokens does not fit a batch of 32; raise train\.batch_tokens"):
        reading(corpus, tokens=32)
