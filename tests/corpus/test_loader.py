"""Batch loading: batch k is a pure function of (corpus, seed, k), filled up to batch_tokens; prefetching."""

import numpy as np
import pytest

from bertsmith.corpus.collate import ClsSepPacking, Collator, MlmTargets
from bertsmith.corpus.loader import BatchLoader, Prefetcher
from bertsmith.corpus.masking import WholeWordMasking
from bertsmith.corpus.sampling import FullSentences, NextSentence
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError


def make_loader(path, sampler=None, seed=3, batch_tokens=1024, max_length=64):
    corpus = Corpus.open(path)
    collator = Collator(path, ClsSepPacking(), MlmTargets(WholeWordMasking(), 0.15), seed)
    return BatchLoader(
        collator, sampler or NextSentence(), np.arange(len(corpus.document_offsets) - 1), max_length, batch_tokens
    )


def batches_equal(a, b):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("input_ids", "lengths", "output_indices", "target_ids", "labels")
    )


def test_loader_batch_k_needs_no_history(corpus):
    loader = make_loader(corpus)
    batches = [loader(k) for k in range(3 * loader.batches_per_epoch)]
    for k in (2 * loader.batches_per_epoch + 1, 1, loader.batches_per_epoch):
        assert batches_equal(make_loader(corpus)(k), batches[k])
    assert not batches_equal(make_loader(corpus, seed=4)(0), batches[0])


def test_loader_epoch_holds_every_sample_once_within_batch_tokens(corpus):
    loader = make_loader(corpus)
    index, batches = loader._epoch_index(1)
    assert sorted(np.concatenate(batches)) == list(range(len(index)))
    sizes = [index.lengths[batch].sum() for batch in batches]
    assert max(sizes) <= 1024 and np.mean(sizes[:-1]) > 1024 - 64


def test_packed_pair_is_cls_a_sep_b_sep(corpus):
    loader = make_loader(corpus)
    tokenizer = loader.collator.corpus.tokenizer
    samples, _ = loader.select_samples(0)
    batch, unmasked = loader(0), ClsSepPacking().pack(loader.collator.corpus, samples).input_ids
    ends = batch.lengths.cumsum()
    for i, end in enumerate(ends):
        ids, token_type_ids = unmasked[end - batch.lengths[i] : end], batch.token_type_ids[end - batch.lengths[i] : end]
        a = loader.collator.corpus.tokens[samples.span_starts[2 * i] : samples.span_ends[2 * i]]
        b = loader.collator.corpus.tokens[samples.span_starts[2 * i + 1] : samples.span_ends[2 * i + 1]]
        assert ids.tolist() == [tokenizer.cls_token_id, *a, tokenizer.sep_token_id, *b, tokenizer.sep_token_id]
        assert token_type_ids.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_full_sentences_are_separated_by_sep_between_documents(corpus):
    loader = make_loader(corpus, FullSentences(), max_length=128, batch_tokens=2048)
    samples, _ = loader.select_samples(0)
    ids = ClsSepPacking().pack(loader.collator.corpus, samples).input_ids
    assert (ids == loader.collator.corpus.tokenizer.sep_token_id).sum() == len(samples.span_starts) > len(samples)
    assert loader(0).token_type_ids is None


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_prefetcher_batches_do_not_depend_on_workers(corpus, workers):
    loader = make_loader(corpus)
    with Prefetcher(loader.collator, workers) as prefetcher:
        order = [*range(2 * loader.batches_per_epoch), 0, 7, 8, 9]  # also after going back
        assert all(batches_equal(prefetcher(k, loader.select_samples), loader(k)) for k in order)


def test_prefetcher_discards_batches_of_the_previous_phase(corpus):
    short, long = make_loader(corpus), make_loader(corpus, max_length=128, batch_tokens=2048)
    with Prefetcher(short.collator, 2) as prefetcher:
        for k in range(8):
            phase = short if k < 4 else long
            assert batches_equal(prefetcher(k, phase.select_samples), phase(k))


def test_loader_refuses_samples_longer_than_a_batch(corpus):
    with pytest.raises(UserError, match=r"max_length=64 does not fit into train\.batch_tokens=32; raise train\.batch_tokens"):
        make_loader(corpus, batch_tokens=32)
