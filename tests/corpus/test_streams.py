"""Streams: row b of a batch goes on where row b of the one before it ended."""

import numpy as np
import pytest

from bertsmith.corpus.loader import Prefetcher
from bertsmith.corpus.sampling import Streams
from bertsmith.corpus.store import Corpus
from bertsmith.objectives import CausalLM, MaskedLM

ROWS, LENGTH = 4, 24


def reading(path, across=False, objective=CausalLM, seed=3):
    corpus = Corpus.open(path)
    documents = np.arange(len(corpus.document_offsets) - 1)
    return objective(view=Streams(across=across)).build_batches(corpus, documents, LENGTH, ROWS * LENGTH, seed)


def rows_of(arrays):
    return np.split(arrays.tokens, arrays.lengths.cumsum()[:-1])


@pytest.mark.parametrize("across", [True, False])
def test_every_row_goes_on_from_the_row_above_it(corpus, across):
    batches = reading(corpus, across)
    before, text = None, Corpus.open(corpus)
    for k in range(batches.batches_per_epoch):
        plan, _ = batches.select_samples(k)
        assert len(plan) == (ROWS if k < batches.batches_per_epoch - 1 else len(plan)) and len(plan) <= ROWS
        for row in range(len(plan)):
            end, goes_on = plan.stream_positions[row]
            assert end == plan.span_ends[row]
            opens = plan.span_starts[row] in text.document_token_offsets
            if before is not None and not (opens and not across):
                assert goes_on == before.stream_positions[row][0]
                assert opens or plan.span_starts[row] == before.span_ends[row]
            elif before is not None:
                assert goes_on == -1
        before = plan


def test_every_token_of_the_corpus_is_asked_once_and_of_the_one_before_it(corpus):
    batches, text = reading(corpus), Corpus.open(corpus)
    asked, streams = 0, [[] for _ in range(ROWS)]
    for arrays in batches:
        assert arrays.output_indices.tolist() == list(range(len(arrays.input_ids))) and arrays.lengths.max() <= LENGTH
        asked += len(arrays.target_ids)
        for row, (ids, words) in enumerate(
            zip(rows_of(arrays), np.split(arrays.target_ids, arrays.lengths.cumsum()[:-1]), strict=True)
        ):
            streams[row].append((ids, words))
    assert asked == len(text.tokens) + len(text.document_offsets) - 1  # all of the text, and the end of each document
    sep, cls = text.tokenizer.sep_token_id, text.tokenizer.cls_token_id
    for stream in streams:
        ids, words = (np.concatenate(part) for part in zip(*stream, strict=True))
        follows = np.where(words[:-1] == sep, ids[1:] == cls, words[:-1] == ids[1:])
        assert follows.all()


def test_batch_k_needs_no_history_and_epochs_differ(corpus):
    forward = reading(corpus)
    batches = [forward(k) for k in range(2 * forward.batches_per_epoch + 1)]
    for k in (2 * forward.batches_per_epoch, 1, forward.batches_per_epoch):
        again = reading(corpus)(k)
        assert all(np.array_equal(getattr(again, n), getattr(batches[k], n)) for n in ("tokens", "lengths", "words", "flow"))
    assert not np.array_equal(batches[0].input_ids, batches[forward.batches_per_epoch].input_ids)


@pytest.mark.parametrize("objective", [CausalLM, MaskedLM])
def test_workers_make_the_same_batches(corpus, objective):
    batches = reading(corpus, objective=objective)
    with Prefetcher(batches.collator, 1) as ahead:
        made = [ahead(k, batches.select_samples) for k in range(3)]
    for k, other in enumerate(made):
        assert all(np.array_equal(getattr(other, n), getattr(batches(k), n)) for n in ("tokens", "words", "flow"))


def test_masked_streams_are_samples_like_others(corpus):
    batches = reading(corpus, objective=MaskedLM)
    tokenizer = batches.collator.corpus.tokenizer
    for ids in rows_of(batches(1)):
        assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id


def test_fewer_samples_than_rows_make_one_short_batch():
    assert [one.tolist() for one in Streams().batch_samples(3, 8)] == [[0, 1, 2]]
    assert [one.tolist() for one in Streams().batch_samples(7, 3)] == [[0, 3, 5], [1, 4, 6], [2]]
    assert Streams().batch_samples(0, 3) == []


def test_another_length_goes_on_from_the_same_place_or_nowhere(corpus):
    """Where the length of a phase changes, batch k + 1 is cut otherwise: what is remembered is still of the text before."""
    text = Corpus.open(corpus)
    documents, goes_on = np.arange(len(text.document_offsets) - 1), 0
    short, long = (CausalLM(view=Streams()).build_batches(text, documents, length, 192, 3) for length in (16, 48))
    for k in range(1, min(short.batches_per_epoch, long.batches_per_epoch)):
        (before, _), (after, _) = short.select_samples(k - 1), long.select_samples(k)
        rows = min(len(before), len(after))
        same = after.stream_positions[:rows, 1] == before.stream_positions[:rows, 0]
        assert (after.span_starts[:rows][same] == before.span_ends[:rows][same]).all()
        goes_on += same.sum()
    assert goes_on < 5
