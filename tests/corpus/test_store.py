"""The corpus on disk: packed flags, word starts, and the split into training and validation documents."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.store import BitWriter, Corpus, unpack_positions, unpack_range
from bertsmith.errors import UserError
from tests.support.corpora import make_corpus


@given(st.lists(st.lists(st.booleans(), max_size=20), max_size=8), st.data())
def test_packed_flags_are_read_at_ranges_and_positions(chunks, data):
    file = io.BytesIO()
    writer = BitWriter(file)
    for chunk in chunks:
        writer.add(np.array(chunk, bool))
    writer.finish()
    flags = np.array([flag for chunk in chunks for flag in chunk], bool)
    packed = np.frombuffer(file.getvalue(), np.uint8)
    assert len(packed) == -(-len(flags) // 8)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(flags))] * 2)))
    assert np.array_equal(unpack_range(packed, start, stop), flags[start:stop])
    positions = np.array(data.draw(st.lists(st.integers(0, len(flags) - 1))) if len(flags) else [], np.int64)
    assert np.array_equal(unpack_positions(packed, positions), flags[positions])


@pytest.mark.parametrize("min_sentences", [1, 4])
def test_split_is_a_partition_determined_by_the_seed(min_sentences):
    corpus = make_corpus(50, max_sentences=9)
    training, validation = corpus.split(0.2, seed=3, min_sentences=min_sentences)
    assert len(validation) == 10 and sorted([*training, *validation]) == list(range(50))
    assert np.diff(corpus.document_offsets)[validation].min() >= min_sentences
    assert all(map(np.array_equal, corpus.split(0.2, seed=3, min_sentences=min_sentences), (training, validation)))
    assert not np.array_equal(corpus.split(0.2, seed=4, min_sentences=min_sentences)[1], validation)


def test_split_has_two_validation_documents_or_none():
    assert len(make_corpus(50).split(0.001, seed=0)[1]) == 2  # sentence pairs need another document
    assert len(make_corpus(50).split(0.0, seed=0)[1]) == len(make_corpus(7).split(0.2, seed=0)[1]) == 0
    with pytest.raises(UserError, match=r"validation_split=0\.95 of 10 documents leaves fewer than two for training"):
        make_corpus(10).split(0.95, seed=0)


def test_word_starts_are_tokens_without_continuation_marks(corpus):
    opened = Corpus.open(corpus)
    positions = np.random.default_rng(0).integers(0, len(opened.tokens), 300)
    names = opened.tokenizer.backend_tokenizer.id_to_token
    assert opened.is_word_start(positions).tolist() == [
        not names(int(opened.tokens[position])).startswith("##") for position in positions
    ]


def test_word_starts_of_a_segmenter_are_every_second_character(chinese):
    opened = Corpus.open(chinese)
    for sentence in range(5):
        start, stop = (int(offset) for offset in opened.sentence_offsets[sentence : sentence + 2])
        is_start = opened.is_word_start(np.arange(start, stop))
        assert is_start[::2].all() and not is_start[1:-1:2].any()


def test_corpus_open_refuses_another_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(UserError, match=str(tmp_path)):
        Corpus.open(Path(tmp_path))
