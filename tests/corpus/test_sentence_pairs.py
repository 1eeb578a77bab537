"""Sentence pairs against a slow reading of the BERT paper's data algorithm, and what they promise."""

from pathlib import Path

import numpy as np
import pytest

from bertsmith.corpus.sampling import NextSentence, SentenceOrder
from bertsmith.corpus.sampling.sentence_pairs import MAX_SECTION_SENTENCES, truncate_pairs
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.rng import randint, random_bits, uniform


def made(documents, seed=0, longest=40, most=30):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most, documents)
    lengths = rng.integers(1, longest, sizes.sum())
    tokens = np.arange(lengths.sum())  # each token is its own position
    starts = np.append(0, lengths.cumsum()), np.append(0, sizes.cumsum())
    return Corpus(Path("made"), tokens, *starts, None, {})


def slowly(corpus, length, seed, epoch, style):
    """One document after another, one chunk after another, with the same dice; pairs before they are truncated."""
    room, count, pairs = length - 3, len(corpus.documents) - 1, []
    sentences = [(corpus.sentences[s], corpus.sentences[s + 1]) for s in range(len(corpus.sentences) - 1)]
    size = lambda chunk: sum(b - a for a, b in chunk)
    for document in range(count):
        at, end, turn = int(corpus.documents[document]), int(corpus.documents[document + 1]), 0
        least = 1 if style == "google" else 2
        while end - at >= least:
            dice = lambda what, turn=turn, document=document: random_bits(seed, f"pairs {what}", epoch, document, turn)
            drawn = lambda what, document=document, turn=turn: random_bits(
                seed, f"pairs {what}", epoch, document, 0 if style == "google" else turn
            )
            target = room if uniform(drawn("brief")) >= 0.1 else 2 + int(randint(drawn("target"), room - 1))
            chunk = []
            while at + len(chunk) < end and (size(chunk) < target or len(chunk) < least):
                chunk.append(sentences[at + len(chunk)])
            if style != "google" and end - at - len(chunk) == 1:
                chunk.append(sentences[end - 1])
            first = 1 if len(chunk) == 1 else 1 + int(randint(dice("middle"), len(chunk) - 1))
            away = uniform(dice("away")) < 0.5 or (style == "google" and len(chunk) == 1)
            second = chunk[first:]
            if away:
                other = other_document(dice, document, count, style)
                run = sentences[corpus.documents[other] : corpus.documents[other + 1]]
                run, second = run[int(randint(dice("start"), len(run))) :], []
                while run and (not second or size(second) < target - size(chunk[:first])):
                    second.append(run.pop(0))
            pairs.append((chunk[0][0], chunk[first - 1][1], second[0][0], second[-1][1], int(away)))
            at, turn = at + (first if away else len(chunk)), turn + 1
    return np.array(pairs)


def other_document(dice, own, count, style):
    if style == "google":
        for attempt in range(10):
            other = int(randint(dice(f"other {attempt}"), count))
            if other != own:
                break
        return other
    other = int(randint(dice("other 0"), count - 1))
    return other + (other >= own)


@pytest.mark.parametrize("style", ["corrected", "google"])
@pytest.mark.parametrize("seed", range(4))
def test_all_documents_at_once_equal_one_after_another(style, seed):
    corpus, length = made(25, seed), 64
    slow = slowly(corpus, length, seed, 3, style)
    plan = NextSentence(style=style).build_index(corpus, np.arange(25), length, seed, 3)
    cut = truncate_pairs(*slow[:, :4].T, length - 3, seed, 3)
    assert np.array_equal(plan.labels, slow[:, 4])
    assert np.array_equal(plan.span_starts.reshape(-1, 2), np.stack(cut[::2], axis=1))
    assert np.array_equal(plan.span_ends.reshape(-1, 2), np.stack(cut[1::2], axis=1))


def test_next_sentences_follow_and_others_come_from_another_document():
    corpus = made(200)
    plan = NextSentence().build_index(corpus, np.arange(200), 512, 0, 0)
    document = np.searchsorted(corpus.document_token_offsets, plan.span_starts, side="right") - 1
    a, b = document.reshape(-1, 2).T
    assert (a != b)[plan.labels == 1].all() and (a == b)[plan.labels == 0].all()
    whole = plan.lengths < 400  # nothing was truncated there
    ends, starts = plan.span_ends.reshape(-1, 2)[:, 0], plan.span_starts.reshape(-1, 2)[:, 1]
    assert (ends == starts)[whole & (plan.labels == 0)].all()


def test_half_follow_even_where_sentences_are_long():
    """In the published code a chunk of one sentence always gets a random B: over half of the pairs are NotNext."""
    corpus = made(3000, longest=150, most=12)
    every = np.arange(3000)
    labels = np.concatenate([NextSentence().build_index(corpus, every, 128, 5, epoch).labels for epoch in range(12)])
    assert len(labels) > 100_000
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    published = NextSentence(style="google").build_index(corpus, every, 128, 5, 0).labels
    assert published.mean() > 0.55


def test_no_sample_is_longer_than_asked_and_every_side_has_a_token():
    corpus = made(100, longest=300)
    for view in (NextSentence(), NextSentence(style="google"), SentenceOrder()):
        for length in (16, 64, 128):
            plan = view.build_index(corpus, np.arange(100), length, 0, 0)
            assert plan.lengths.max() <= length
            assert (plan.span_ends > plan.span_starts).all()


def test_a_tenth_of_the_samples_is_short():
    corpus, every = made(300, longest=10, most=600), np.arange(300)
    short = NextSentence().build_index(corpus, every, 128, 0, 0).lengths < 90
    none = NextSentence(short=0.0).build_index(corpus, every, 128, 0, 0).lengths < 90  # but for documents that end
    assert short.mean() - none.mean() == pytest.approx(0.1 * 85 / 125, abs=0.02)


def test_swapped_pairs_are_the_same_pairs_the_other_way_round():
    corpus = made(500)
    plan = SentenceOrder().build_index(corpus, np.arange(500), 1024, 0, 0)
    starts, ends = plan.span_starts.reshape(-1, 2), plan.span_ends.reshape(-1, 2)
    kept, swapped = plan.labels == 0, plan.labels == 1
    assert (ends[kept, 0] == starts[kept, 1]).all() and (ends[swapped, 1] == starts[swapped, 0]).all()
    assert abs(plan.labels.mean() - 0.5) < 4 * 0.5 / len(plan) ** 0.5


def test_a_library_in_one_document_is_read_in_stretches_and_read_whole():
    lengths = np.full(5 * MAX_SECTION_SENTENCES, 7)
    corpus = Corpus(
        Path("made"), np.arange(lengths.sum()), np.append(0, lengths.cumsum()), np.array([0, 10, len(lengths)]), None, {}
    )
    plan = SentenceOrder().build_index(corpus, np.arange(2), 128, 0, 0)
    seen = np.zeros(lengths.sum(), bool)
    for a, b in zip(plan.span_starts, plan.span_ends, strict=True):
        seen[a:b] = True
    assert seen.mean() > 0.9


def test_truncation_takes_from_the_longer_side_at_both_ends():
    count = 20_000
    zero, (long_a, long_b) = np.zeros(count, np.int64), (100, 40)
    a, a_end, b, b_end = truncate_pairs(zero, zero + long_a, zero + 1000, zero + 1000 + long_b, 61, 0, 0)
    assert set((a_end - a) + (b_end - b)) == {61}
    assert set(a_end - a) == {31} and set(b_end - b) == {30}  # A gives until they are equal, then B goes first
    assert abs(a.mean() - (100 - 31) / 2) < 0.2 and abs(a.std() - (69 / 4) ** 0.5) < 0.1  # a coin for every token
    assert (a_end <= 100).all() and (b >= 1000).all()


def test_one_document_or_lone_sentences_are_refused_with_a_way_out():
    with pytest.raises(UserError, match=r"needs a second document.*objective=masked"):
        NextSentence().build_index(made(1), np.arange(1), 128, 0, 0)
    lone = Corpus(Path("made"), np.arange(30), np.arange(0, 31, 3), np.arange(11), None, {})
    with pytest.raises(UserError, match="no document has two sentences"):
        NextSentence().build_index(lone, np.arange(10), 128, 0, 0)
