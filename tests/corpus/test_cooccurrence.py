"""Counts of words near one another: against one loop over all pairs, in any amount of memory."""

from collections import defaultdict
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.corpus import cooccurrence
from bertsmith.corpus.cooccurrence import count_cooccurrences
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.conftest import prepared, prose

TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abcdefgh"])
some_documents = st.lists(
    st.lists(st.lists(st.sampled_from([1, 5, 6, 7, 8, 9, 12]), min_size=1, max_size=12), min_size=1, max_size=4),
    min_size=1, max_size=5,
)  # fmt: skip


def made(documents) -> Corpus:
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([number for sentence in sentences for number in sentence], np.uint16)
    starts = np.cumsum([0, *map(len, sentences)])
    borders = np.cumsum([0, *map(len, documents)])
    corpus = Corpus(None, tokens, starts, borders, None, {"made_by": str(hash(tokens.tobytes()))})
    corpus.__dict__["tokenizer"] = TOKENIZER
    return corpus


def by_force(documents, window, within):
    """Both orders of every pair, as the original's two lines do."""
    found = defaultdict(float)
    texts = (
        [list(chain.from_iterable(document)) for document in documents]
        if within == "document"
        else chain.from_iterable(documents)
    )
    for text in texts:
        words = [number for number in text if number > 4]
        for later, word in enumerate(words):
            for earlier in range(max(0, later - window), later):
                found[words[earlier], word] += 1 / (later - earlier)
                found[word, words[earlier]] += 1 / (later - earlier)
    return found


def both_orders(counts):
    found = {}
    for i, j, x in counts.entries.tolist():
        assert i <= j and (i, j) not in found
        found[i, j] = found[j, i] = x
    return found


@pytest.mark.parametrize("within", ["sentence", "document"])
@settings(max_examples=60)
@given(documents=some_documents, window=st.integers(1, 12), step=st.integers(1, 40))
def test_counts_are_those_of_one_loop_over_all_pairs(tmp_path_factory, documents, window, within, step):
    folder = tmp_path_factory.mktemp("counts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooccurrence, "MIN_MEMORY", 1)
        counts = count_cooccurrences(made(documents), folder, window, within, memory=48 * window * step)
    assert both_orders(counts) == pytest.approx(dict(by_force(documents, window, within)), rel=1e-6)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, vocabulary):
    folder = tmp_path_factory.mktemp("prose")
    (folder / "text.txt").write_text(prose(400), encoding="utf-8")
    return Corpus.open(prepared(folder / "text.txt", vocabulary, folder / "corpus"))


def settled(counts):
    return np.sort(counts.entries, order=["i", "j"])


def test_many_runs_and_blocks_make_the_counts_of_one(corpus, tmp_path, monkeypatch):
    whole = count_cooccurrences(corpus, tmp_path / "whole")
    monkeypatch.setattr(cooccurrence, "MIN_MEMORY", 1)
    parts = count_cooccurrences(corpus, tmp_path / "parts", memory=200_000)
    assert len(whole.block_starts) == 2 and len(parts.block_starts) > 4
    assert (settled(whole) == settled(parts)).all()  # bit for bit
    assert not (tmp_path / "parts" / "runs").exists()


def test_blocks_hold_rising_keys_shuffled_and_parts_are_samples_of_all(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cooccurrence, "MIN_MEMORY", 1)
    counts = count_cooccurrences(corpus, tmp_path, memory=200_000)
    entries, keys = counts.entries, counts.entries["i"].astype(np.int64) << 32 | counts.entries["j"]
    inside = [keys[a:b] for a, b in zip(counts.block_starts[:-1], counts.block_starts[1:], strict=True)]
    assert all(left.max() < right.min() for left, right in pairwise(inside))
    assert not any((np.diff(block) > 0).all() for block in inside)
    parts = [counts.shard(number, 7) for number in range(7)]
    assert (np.sort(np.concatenate(parts), order=["i", "j"]) == settled(counts)).all()
    assert max(map(len, parts)) - min(map(len, parts)) <= len(inside)
    assert all(abs(part["i"].mean() - entries["i"].mean()) < 0.2 * entries["i"].std() for part in parts)


def test_a_killed_count_goes_on_with_the_runs_it_has(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cooccurrence, "MIN_MEMORY", 1)
    want = settled(count_cooccurrences(corpus, tmp_path / "whole", memory=200_000))

    def stopped(done, of):
        if done > of // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_cooccurrences(corpus, tmp_path / "killed", memory=200_000, progress=stopped)
    there = {run.name: run.stat().st_mtime_ns for run in (tmp_path / "killed" / "runs").glob("run-*")}
    seen = []
    monkeypatch.setattr(
        cooccurrence,
        "_write_run",
        lambda path, *rest, save=cooccurrence._write_run: (seen.append(path.name), save(path, *rest)),
    )
    assert (settled(count_cooccurrences(corpus, tmp_path / "killed", memory=200_000)) == want).all()
    assert len(there) > 1 and not there.keys() & set(seen) and seen
    seen.clear()
    count_cooccurrences(corpus, tmp_path / "killed", memory=200_000)
    assert not seen  # and a finished one is found
    count_cooccurrences(corpus, tmp_path / "killed", window=3, memory=200_000)
    assert seen  # but not for other settings


def test_windows_and_memory_have_limits(corpus, tmp_path):
    for wrong in ({"window": 0}, {"window": 21}, {"memory": 10}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            count_cooccurrences(corpus, tmp_path, **wrong)
