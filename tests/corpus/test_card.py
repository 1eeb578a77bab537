"""The data card: counts, entropy and histograms against plain loops; bits per byte by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import card
from bertsmith.corpus.store import Corpus


@given(st.lists(st.integers(1, 3000), max_size=60))
def test_length_histogram_matches_loop(lengths):
    expected = Counter(max(edge for edge in card.LENGTH_BINS if edge <= length) for length in lengths)
    assert card.length_histogram(np.array(lengths, np.int64)) == {f"{edge}+": expected[edge] for edge in sorted(expected)}


@pytest.mark.parametrize("chunk_tokens", [1, 7, 1000])
def test_count_unigrams_does_not_depend_on_chunks(chunk_tokens, monkeypatch):
    tokens = np.random.default_rng(0).integers(0, 9, 100).astype(np.uint16)
    monkeypatch.setattr(card, "CHUNK_TOKENS", chunk_tokens)
    assert card.count_unigrams(tokens, 12).tolist() == [Counter(tokens.tolist())[token] for token in range(12)]


def test_unigram_entropy_of_uniform_and_single_tokens():
    assert card.unigram_entropy(np.array([5, 5, 0, 5, 5])) == pytest.approx(math.log(4), abs=1e-4)
    assert card.unigram_entropy(np.array([0, 9])) == 0


def test_bits_per_byte_counts_unknown_words_as_bytes():
    values = {"tokens": 6, "bytes": 20, "unknown_rate": 0.0}
    assert card.bits_per_byte(2 * math.log(2), values) == pytest.approx(2 * 6 / 20)
    assert card.bits_per_byte(2 * math.log(2), {**values, "unknown_rate": 0.1, "unknown_bytes": 3}) == pytest.approx(36 / 20)
    assert card.bits_per_byte(1.0, {**values, "unknown_rate": 0.1}) is None
    assert card.bits_per_byte(1.0, {"tokens": 6, "unknown_rate": 0.0}) is None


def test_card_entropy_is_that_of_the_tokens(corpus):
    opened = Corpus.open(corpus)
    frequencies = np.array(list(Counter(opened.tokens.tolist()).values())) / len(opened.tokens)
    assert opened.card["unigram_entropy"] == pytest.approx(-(frequencies * np.log(frequencies)).sum(), abs=1e-4)
    assert sum(opened.card["sentence_lengths"].values()) == opened.card["sentences"] == len(opened.sentence_offsets) - 1
