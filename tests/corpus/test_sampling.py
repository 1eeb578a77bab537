"""Windows and whole sentences: every token once, none too long, nothing across a document unless asked."""

import numpy as np
import pytest

from bertsmith.corpus.sampling import DocSentences, FullSentences, NextSentence, SentenceOrder, Windows
from tests.corpus.test_sentence_pairs import made

EVERY = [Windows(), DocSentences(), FullSentences(), NextSentence(), SentenceOrder()]


@pytest.mark.parametrize("view", EVERY[:3], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("length", [16, 50, 128])
def test_every_token_is_in_exactly_one_sample(view, length):
    corpus = made(40, longest=200)
    plan = view.plan(corpus, np.arange(40), length, 0, 0)
    times = np.zeros(len(corpus.tokens), int)
    for a, b in zip(plan.starts, plan.ends, strict=True):
        times[a:b] += 1
    assert (times == 1).all()
    assert plan.lengths.max() <= length


@pytest.mark.parametrize("view", EVERY, ids=lambda v: type(v).__name__)
def test_no_span_leaves_its_document_and_only_the_given_documents_are_read(view):
    corpus, some = made(60), np.arange(5, 60, 3)
    plan = view.plan(corpus, some, 64, 0, 0)
    first = np.searchsorted(corpus.document_token_offsets, plan.starts, side="right") - 1
    last = np.searchsorted(corpus.document_token_offsets, plan.ends - 1, side="right") - 1
    assert (first == last).all()
    assert set(first) <= set(some)


@pytest.mark.parametrize("view", EVERY, ids=lambda v: type(v).__name__)
def test_a_plan_is_a_pure_function_and_epochs_differ(view):
    corpus = made(60)
    plans = [view.plan(corpus, np.arange(60), 64, *key) for key in ((1, 2), (1, 2), (1, 3), (2, 2))]
    assert np.array_equal(plans[0].starts, plans[1].starts) and np.array_equal(plans[0].ends, plans[1].ends)
    if not isinstance(view, DocSentences):  # which has nothing to draw
        assert not np.array_equal(plans[0].starts, plans[2].starts)
        assert not np.array_equal(plans[0].starts, plans[3].starts)


def test_whole_sentences_are_cut_only_where_one_is_too_long():
    corpus = made(60, longest=30)
    for view in (DocSentences(), FullSentences()):
        plan = view.build_index(corpus, np.arange(60), 64, 0, 0)
        assert (
            np.isin(plan.span_starts, corpus.sentence_offsets).all() and np.isin(plan.span_ends, corpus.sentence_offsets).all()
        )


def test_full_sentences_go_on_into_the_next_document():
    corpus = made(60, longest=12, most=4)
    full, doc = (view.build_index(corpus, np.arange(60), 128, 0, 0) for view in (FullSentences(), DocSentences()))
    assert np.diff(full.span_offsets).max() > 1 and np.diff(doc.span_offsets).max() == 1
    assert full.lengths.mean() > 2 * doc.lengths.mean()
