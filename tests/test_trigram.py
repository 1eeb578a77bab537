"""The control of NNLM: probabilities that add up to one, and Kneser-Ney's by hand."""

import numpy as np
import pytest

from benchmarks.trigram import KneserNeyTrigram, compute_discounts

V, START = 12, 2


def stream(seed=0, texts=60):
    rng = np.random.default_rng(seed)
    words = np.array([3, 5, 6, 7, 8, 9])
    return np.concatenate(
        [[START, START, *rng.choice(words, rng.integers(1, 12), p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05]), 3] for _ in range(texts)]
    )


def test_every_context_has_one_to_share():
    model = KneserNeyTrigram(stream(), V, START)
    for first in range(V):
        for second in range(V):
            given = np.full(V, first), np.full(V, second), np.arange(V)
            assert model.probabilities(*given).sum() == pytest.approx(1)
            assert (model.probabilities(*given) > 0).all()


def test_a_word_is_weighed_by_how_many_words_it_follows():
    """San Francisco: frequent, but behind one word alone; it backs off to less than a word of many neighbours."""
    text = [START, START] + [5, 6] * 30 + [7, 9, 8, 9, 5, 9, 10, 9, 11, 9] + [3]
    model = KneserNeyTrigram(np.array(text), V, START)
    francisco, common = model.probabilities(np.array([4, 4]), np.array([4, 4]), np.array([6, 9]))
    assert common > 2 * francisco


def test_discounts_are_chen_and_goodman_s():
    counts = np.repeat([1, 2, 3, 4, 9], [50, 20, 10, 5, 3])
    y = 50 / (50 + 2 * 20)
    assert compute_discounts(counts).tolist() == pytest.approx(
        [0, 1 - 2 * y * 20 / 50, 2 - 3 * y * 10 / 20, 3 - 4 * y * 5 / 10]
    )


def test_perplexity_is_of_the_words_and_not_of_the_start():
    model, held = KneserNeyTrigram(stream(), V, START), stream(1, 3)
    logs = [
        np.log(model.probabilities(*held[[[at - 2], [at - 1], [at]]])[0]) for at in range(2, len(held)) if held[at] != START
    ]
    assert model.perplexity(held) == pytest.approx(np.exp(-np.mean(logs)))
