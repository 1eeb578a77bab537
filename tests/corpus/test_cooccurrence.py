"""Co-occurrence counts against a brute-force loop over all pairs, in any amount of memory."""

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
from tests.support.corpora import prepare_test_corpus
from tests.support.texts import make_english_text

TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abcdefgh"])
document_lists = st.lists(
    st.lists(st.lists(st.sampled_from([1, 5, 6, 7, 8, 9, 12]), min_size=1, max_size=12), min_size=1, max_size=4),
    min_size=1, max_size=5,
)  # fmt: skip


def build_corpus(documents) -> Corpus:
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token_id for sentence in sentences for token_id in sentence], np.uint16)
    sentence_offsets = np.cumsum([0, *map(len, sentences)])
    document_offsets = np.cumsum([0, *map(len, documents)])
    corpus = Corpus(None, tokens, sentence_offsets, document_offsets, None, {"identity": str(hash(tokens.tobytes()))})
    corpus.__dict__["tokenizer"] = TOKENIZER
    return corpus


def brute_force_counts(documents, window, scope):
    """Both orders of every pair, as in GloVe's cooccur.c."""
    counts = defaultdict(float)
    texts = (
        [list(chain.from_iterable(document)) for document in documents]
        if scope == "document"
        else chain.from_iterable(documents)
    )
    for text in texts:
        words = [token_id for token_id in text if token_id > 4]
        for right, word in enumerate(words):
            for left in range(max(0, right - window), right):
                counts[words[left], word] += 1 / (right - left)
                counts[word, words[left]] += 1 / (right - left)
    return counts


def to_symmetric_dict(counts):
    symmetric = {}
    for i, j, x in counts.entries.tolist():
        assert i <= j and (i, j) not in symmetric
        symmetric[i, j] = symmetric[j, i] = x
    return symmetric


@pytest.mark.parametrize("within", ["sentence", "document"])
@settings(max_examples=60)
@given(documents=document_lists, window=st.integers(1, 12), step=st.integers(1, 40))
def test_cooccurrence_counts_match_brute_force(tmp_path_factory, documents, window, within, step):
    folder = tmp_path_factory.mktemp("counts")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cooccurrence, "MIN_MEMORY", 1)
        counts = count_cooccurrences(build_corpus(documents), folder, window, within, memory=48 * window * step)
    assert to_symmetric_dict(counts) == pytest.approx(dict(brute_force_counts(documents, window, within)), rel=1e-6)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, vocabulary):
    folder = tmp_path_factory.mktemp("prose")
    (folder / "text.txt").write_text(make_english_text(400), encoding="utf-8")
    return Corpus.open(prepare_test_corpus(folder / "text.txt", vocabulary, folder / "corpus"))


def sorted_entries(counts):
    return np.sort(counts.entries, order=["i", "j"])


def test_cooccurrence_counts_do_not_depend_on_memory(corpus, tmp_path, monkeypatch):
    one_block = count_cooccurrences(corpus, tmp_path / "whole")
    monkeypatch.setattr(cooccurrence, "MIN_MEMORY", 1)
    many_blocks = count_cooccurrences(corpus, tmp_path / "parts", memory=200_000)
    assert len(one_block.block_starts) == 2 and len(many_blocks.block_starts) > 4
    assert (sorted_entries(one_block) == sorted_entries(many_blocks)).all()  # bit-identical
    assert not (tmp_path / "parts" / "runs").exists()


def test_cooccurrence_blocks_are_shuffled_and_shards_are_samples(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cooccurrence, "MIN_MEMORY", 1)
    counts = count_cooccurrences(corpus, tmp_path, memory=200_000)
    entries, keys = counts.entries, counts.entries["i"].astype(np.int64) << 32 | counts.entries["j"]
    blocks = [keys[start:end] for start, end in zip(counts.block_starts[:-1], counts.block_starts[1:], strict=True)]
    assert all(left.max() < right.min() for left, right in pairwise(blocks))
    assert not any((np.diff(block) > 0).all() for block in blocks)
    shards = [counts.shard(index, 7) for index in range(7)]
    assert (np.sort(np.concatenate(shards), order=["i", "j"]) == sorted_entries(counts)).all()
    assert max(map(len, shards)) - min(map(len, shards)) <= len(blocks)
    assert all(abs(shard["i"].mean() - entries["i"].mean()) < 0.2 * entries["i"].std() for shard in shards)


def test_interrupted_cooccurrence_count_resumes_from_its_runs(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cooccurrence, "MIN_MEMORY", 1)
    expected = sorted_entries(count_cooccurrences(corpus, tmp_path / "whole", memory=200_000))

    def interrupt_halfway(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_cooccurrences(corpus, tmp_path / "killed", memory=200_000, progress=interrupt_halfway)
    runs_before = {run.name: run.stat().st_mtime_ns for run in (tmp_path / "killed" / "runs").glob("run-*")}
    runs_written = []
    monkeypatch.setattr(
        cooccurrence,
        "_write_run",
        lambda path, *rest, save=cooccurrence._write_run: (runs_written.append(path.name), save(path, *rest)),
    )
    assert (sorted_entries(count_cooccurrences(corpus, tmp_path / "killed", memory=200_000)) == expected).all()
    assert len(runs_before) > 1 and not runs_before.keys() & set(runs_written) and runs_written
    runs_written.clear()
    count_cooccurrences(corpus, tmp_path / "killed", memory=200_000)
    assert not runs_written  # finished counts are reused
    count_cooccurrences(corpus, tmp_path / "killed", window=3, memory=200_000)
    assert runs_written  # but not with other settings


def test_cooccurrence_refuses_bad_window_and_memory(corpus, tmp_path):
    for setting in ({"window": 0}, {"window": 21}, {"memory": 10}):
        with pytest.raises(UserError, match=next(iter(setting))):
            count_cooccurrences(corpus, tmp_path, **setting)
