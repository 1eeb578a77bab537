"""Kneser-Ney trigram, the baseline of NNLM: probabilities sum to one, discounts and perplexity by hand."""

import numpy as np
import pytest

from benchmarks.trigram import KneserNeyTrigram, compute_discounts

VOCAB_SIZE, START = 12, 2


def sample_tokens(seed=0, num_texts=60):
    rng = np.random.default_rng(seed)
    words = np.array([3, 5, 6, 7, 8, 9])
    return np.concatenate(
        [
            [START, START, *rng.choice(words, rng.integers(1, 12), p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05]), 3]
            for _ in range(num_texts)
        ]
    )


def test_trigram_probabilities_sum_to_one():
    model = KneserNeyTrigram(sample_tokens(), VOCAB_SIZE, START)
    for first in range(VOCAB_SIZE):
        for second in range(VOCAB_SIZE):
            trigrams = np.full(VOCAB_SIZE, first), np.full(VOCAB_SIZE, second), np.arange(VOCAB_SIZE)
            assert model.probabilities(*trigrams).sum() == pytest.approx(1)
            assert (model.probabilities(*trigrams) > 0).all()


def test_trigram_backs_off_by_continuation_counts():
    """ "Francisco" is frequent, but only after one word: its back-off probability is lower than that of a word after many."""
    text = [START, START] + [5, 6] * 30 + [7, 9, 8, 9, 5, 9, 10, 9, 11, 9] + [3]
    model = KneserNeyTrigram(np.array(text), VOCAB_SIZE, START)
    francisco, common = model.probabilities(np.array([4, 4]), np.array([4, 4]), np.array([6, 9]))
    assert common > 2 * francisco


def test_trigram_discounts_match_chen_and_goodman():
    counts = np.repeat([1, 2, 3, 4, 9], [50, 20, 10, 5, 3])
    y = 50 / (50 + 2 * 20)
    assert compute_discounts(counts).tolist() == pytest.approx(
        [0, 1 - 2 * y * 20 / 50, 2 - 3 * y * 10 / 20, 3 - 4 * y * 5 / 10]
    )


def test_trigram_perplexity_excludes_start_symbols():
    model, tokens = KneserNeyTrigram(sample_tokens(), VOCAB_SIZE, START), sample_tokens(1, 3)
    logs = [
        np.log(model.probabilities(*tokens[[[i - 2], [i - 1], [i]]])[0]) for i in range(2, len(tokens)) if tokens[i] != START
    ]
    assert model.perplexity(tokens) == pytest.approx(np.exp(-np.mean(logs)))
