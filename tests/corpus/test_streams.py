"""Streams: row b of a batch continues where row b of the previous batch ended."""

import numpy as np
import pytest

from bertsmith.corpus.loader import Prefetcher
from bertsmith.corpus.sampling import Streams
from bertsmith.corpus.store import Corpus
from bertsmith.objectives import CausalLM, MaskedLM

ROWS, LENGTH = 4, 24


def make_loader(path, across=False, objective=CausalLM, seed=3):
    corpus = Corpus.open(path)
    documents = np.arange(len(corpus.document_offsets) - 1)
    return objective(packing=Streams(across=across)).build_batches(corpus, documents, LENGTH, ROWS * LENGTH, seed)


def split_rows(batch):
    return np.split(batch.input_ids, batch.lengths.cumsum()[:-1])


@pytest.mark.parametrize("across", [True, False])
def test_stream_rows_continue_the_rows_of_the_previous_batch(corpus, across):
    loader = make_loader(corpus, across)
    previous, opened = None, Corpus.open(corpus)
    for k in range(loader.batches_per_epoch):
        samples, _ = loader.select_samples(k)
        assert len(samples) == (ROWS if k < loader.batches_per_epoch - 1 else len(samples)) and len(samples) <= ROWS
        for row in range(len(samples)):
            end, continues_from = samples.stream_positions[row]
            assert end == samples.span_ends[row]
            starts_document = samples.span_starts[row] in opened.document_token_offsets
            if previous is not None and not (starts_document and not across):
                assert continues_from == previous.stream_positions[row][0]
                assert starts_document or samples.span_starts[row] == previous.span_ends[row]
            elif previous is not None:
                assert continues_from == -1
        previous = samples


def test_streams_predict_every_token_once_from_the_one_before(corpus):
    loader, opened = make_loader(corpus), Corpus.open(corpus)
    num_targets, streams = 0, [[] for _ in range(ROWS)]
    for batch in loader:
        assert batch.output_indices.tolist() == list(range(len(batch.input_ids))) and batch.lengths.max() <= LENGTH
        num_targets += len(batch.target_ids)
        for row, (input_ids, target_ids) in enumerate(
            zip(split_rows(batch), np.split(batch.target_ids, batch.lengths.cumsum()[:-1]), strict=True)
        ):
            streams[row].append((input_ids, target_ids))
    assert num_targets == len(opened.tokens) + len(opened.document_offsets) - 1  # all tokens, and the end of each document
    sep, cls = opened.tokenizer.sep_token_id, opened.tokenizer.cls_token_id
    for stream in streams:
        input_ids, target_ids = (np.concatenate(parts) for parts in zip(*stream, strict=True))
        is_next = np.where(target_ids[:-1] == sep, input_ids[1:] == cls, target_ids[:-1] == input_ids[1:])
        assert is_next.all()


def test_stream_batch_k_needs_no_history_and_epochs_differ(corpus):
    loader = make_loader(corpus)
    batches = [loader(k) for k in range(2 * loader.batches_per_epoch + 1)]
    for k in (2 * loader.batches_per_epoch, 1, loader.batches_per_epoch):
        batch = make_loader(corpus)(k)
        assert all(
            np.array_equal(getattr(batch, name), getattr(batches[k], name))
            for name in ("input_ids", "lengths", "target_ids", "stream_positions")
        )
    assert not np.array_equal(batches[0].input_ids, batches[loader.batches_per_epoch].input_ids)


@pytest.mark.parametrize("objective", [CausalLM, MaskedLM])
def test_prefetched_stream_batches_are_the_same(corpus, objective):
    loader = make_loader(corpus, objective=objective)
    with Prefetcher(loader.collator, 1) as prefetcher:
        prefetched = [prefetcher(k, loader.select_samples) for k in range(3)]
    for k, batch in enumerate(prefetched):
        assert all(
            np.array_equal(getattr(batch, name), getattr(loader(k), name))
            for name in ("input_ids", "target_ids", "stream_positions")
        )


def test_masked_streams_have_cls_and_sep(corpus):
    loader = make_loader(corpus, objective=MaskedLM)
    tokenizer = loader.collator.corpus.tokenizer
    for input_ids in split_rows(loader(1)):
        assert input_ids[0] == tokenizer.cls_token_id and input_ids[-1] == tokenizer.sep_token_id


def test_streams_batch_samples_with_few_samples():
    assert [batch.tolist() for batch in Streams().batch_samples(3, 8)] == [[0, 1, 2]]
    assert [batch.tolist() for batch in Streams().batch_samples(7, 3)] == [[0, 3, 5], [1, 4, 6], [2]]
    assert Streams().batch_samples(0, 3) == []


def test_streams_continue_only_at_the_same_position_after_a_length_change(corpus):
    """When max_length changes between phases, batch k + 1 is split differently: memory is kept only if it precedes the text."""
    opened = Corpus.open(corpus)
    document_ids, num_continued = np.arange(len(opened.document_offsets) - 1), 0
    short, long = (
        CausalLM(packing=Streams()).build_batches(opened, document_ids, max_length, 192, 3) for max_length in (16, 48)
    )
    for k in range(1, min(short.batches_per_epoch, long.batches_per_epoch)):
        (before, _), (after, _) = short.select_samples(k - 1), long.select_samples(k)
        num_rows = min(len(before), len(after))
        is_continued = after.stream_positions[:num_rows, 1] == before.stream_positions[:num_rows, 0]
        assert (after.span_starts[:num_rows][is_continued] == before.span_ends[:num_rows][is_continued]).all()
        num_continued += is_continued.sum()
    assert num_continued < 5
