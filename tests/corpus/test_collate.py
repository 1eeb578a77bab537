"""Collators: every packing goes with every kind of targets, and both go to worker processes as small values."""

import pickle
from itertools import product

import numpy as np
import pytest

from bertsmith.corpus.collate import (
    BilmTargets,
    ClmTargets,
    ClsSepPacking,
    Collator,
    DocumentPacking,
    MlmTargets,
    StreamPacking,
)
from bertsmith.corpus.masking import TokenMasking, WholeWordMasking
from bertsmith.corpus.sampling import Streams, Windows
from bertsmith.corpus.store import Corpus

PACKINGS = (ClsSepPacking(), DocumentPacking(), StreamPacking())
TARGETS = (MlmTargets(WholeWordMasking(), 0.3), ClmTargets(), BilmTargets())
every_packing = pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: type(packing).__name__)
every_pair = pytest.mark.parametrize(
    ("packing", "targets"), list(product(PACKINGS, TARGETS)), ids=lambda part: type(part).__name__
)


def build_samples(corpus):
    documents = np.arange(len(corpus.document_offsets) - 1)
    return Windows().build_index(corpus, documents, 24, seed=3, epoch=0).select(np.arange(2, 40))


def split_sequences(values, lengths):
    return [part.tolist() for part in np.split(values, lengths.cumsum()[:-1])]


@every_pair
def test_pickled_collator_gives_the_same_batch_and_no_corpus(corpus, packing, targets):
    collator = Collator(corpus, packing, targets, seed=5)
    samples = build_samples(collator.corpus)
    batch, data = collator(samples, 1), pickle.dumps(collator)
    assert len(data) < 1000  # the corpus, cached by now, is opened again
    copy = pickle.loads(data)
    assert copy == collator and "corpus" not in vars(copy)
    other = copy(samples, 1)
    for name in ("input_ids", "lengths", "output_indices", "target_ids"):
        assert np.array_equal(getattr(batch, name), getattr(other, name)), name


@every_pair
def test_every_packing_goes_with_every_kind_of_targets(corpus, packing, targets):
    """Targets are tokens of the text (and, of causal models, its [SEP]), at ascending positions of the packed input."""
    opened = Corpus.open(corpus)
    samples, tokenizer = build_samples(opened), opened.tokenizer
    packed, batch = packing.pack(opened, samples), Collator(corpus, packing, targets, seed=5)(samples, 1)
    assert np.array_equal(batch.lengths, packed.lengths) and batch.lengths.sum() == len(batch.input_ids)
    assert (np.diff(batch.output_indices) > 0).all() and len(batch.output_indices) == len(batch.target_ids)
    is_text = packed.corpus_positions >= 0
    assert np.array_equal(packed.input_ids[is_text], opened.tokens[packed.corpus_positions[is_text]])
    if isinstance(targets, ClmTargets):
        assert np.array_equal(batch.input_ids, packed.input_ids)
        last = packed.lengths.cumsum() - 1
        inner = np.setdiff1d(batch.output_indices, last)
        assert len(inner) == len(packed.input_ids) - len(last)  # all but the last of each sequence
        assert np.array_equal(batch.target_ids[np.isin(batch.output_indices, inner)], packed.input_ids[inner + 1])
    else:
        assert is_text[batch.output_indices].all()
        assert np.array_equal(batch.target_ids, packed.input_ids[batch.output_indices])
    if isinstance(targets, BilmTargets):
        assert len(batch.target_ids) == is_text.sum()
    if isinstance(targets, MlmTargets):
        num_maskable = (is_text & ~tokenizer.is_special[packed.input_ids]).sum()
        assert len(batch.target_ids) / num_maskable == pytest.approx(targets.target_fraction, abs=0.05)
        unchanged = np.delete(np.arange(len(batch.input_ids)), batch.output_indices)
        assert np.array_equal(batch.input_ids[unchanged], packed.input_ids[unchanged])
        assert (batch.input_ids == tokenizer.mask_token_id).sum() > 0.6 * len(batch.target_ids)


@every_packing
def test_packing_puts_special_tokens_where_it_says(corpus, packing):
    """Compared with a loop over samples."""
    opened = Corpus.open(corpus)
    samples, cls, sep = build_samples(opened), opened.tokenizer.cls_token_id, opened.tokenizer.sep_token_id
    boundaries, expected = set(opened.document_token_offsets.tolist()), []
    for start, end in zip(samples.span_starts.tolist(), samples.span_ends.tolist(), strict=True):
        text = opened.tokens[start:end].tolist()
        if isinstance(packing, ClsSepPacking):
            expected.append([cls, *text, sep])
        elif isinstance(packing, DocumentPacking):
            expected.append([cls, *text, *([sep] if end in boundaries else [])])
        else:
            expected.append([*([cls] if start in boundaries else []), *text])
    packed = packing.pack(opened, samples)
    assert split_sequences(packed.input_ids, packed.lengths) == expected
    assert len({len(ids) for ids in expected}) > 1 and any(end in boundaries for end in samples.span_ends.tolist())


def test_stream_packing_knows_the_token_after_each_sequence(corpus):
    opened = Corpus.open(corpus)
    samples, boundaries = build_samples(opened), set(opened.document_token_offsets.tolist())
    expected = [
        opened.tokenizer.sep_token_id if end in boundaries else int(opened.tokens[end]) for end in samples.span_ends.tolist()
    ]
    assert StreamPacking().pack(opened, samples).next_ids.tolist() == expected
    batch = Collator(corpus, StreamPacking(), ClmTargets(), 0)(samples, 0)
    assert batch.target_ids[batch.lengths.cumsum() - 1].tolist() == expected


@pytest.mark.parametrize("targets", TARGETS, ids=lambda targets: type(targets).__name__)
def test_batches_of_streams_say_where_memory_continues(corpus, targets):
    """Not for bidirectional models, whose backward direction cannot continue from the text before."""
    collator = Collator(corpus, ClsSepPacking(), targets, seed=5)
    documents = np.arange(len(collator.corpus.document_offsets) - 1)
    samples = Streams().build_index(collator.corpus, documents, 24, seed=3, epoch=0)
    positions = collator(samples, 0).stream_positions
    assert (positions is None) if isinstance(targets, BilmTargets) else np.array_equal(positions, samples.stream_positions)


def test_masks_depend_on_the_sample_and_not_on_its_batch(corpus):
    collator = Collator(corpus, ClsSepPacking(), MlmTargets(TokenMasking(), 0.3), seed=5)
    samples = build_samples(collator.corpus)
    together = split_sequences(*(lambda batch: (batch.input_ids, batch.lengths))(collator(samples, 0)))
    for i in (0, 7, 30):
        assert collator(samples.select(np.array([i])), 0).input_ids.tolist() == together[i]
    assert collator(samples, 1).input_ids.tolist() != collator(samples, 0).input_ids.tolist()
