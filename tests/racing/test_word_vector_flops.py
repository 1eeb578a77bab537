"""FLOPs of word vectors equal a count by loops over (center, context) pairs."""

from itertools import pairwise, product

import numpy as np
import pytest

from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.corpus.cooccurrence import count_cooccurrences
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.objectives import Cbow, Glove, SkipGram
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.racing import run
from bertsmith.racing.budget import count_spent_flops, fit_to_budget
from bertsmith.racing.entries import build_entries
from bertsmith.racing.flops import epoch_flops
from bertsmith.word_vectors.hierarchical_softmax import build_huffman_paths
from tests.support.racing import SMALL, race_settings, write_files


def sentence_lengths(corpus: Corpus) -> list[int]:
    special = corpus.tokenizer.is_special
    starts = corpus.sentence_offsets
    return [int((~special[corpus.tokens[a:b]]).sum()) for a, b in pairwise(starts)]


def count_pairs_by_loop(size: int, window: int) -> float:
    """Expected context words of all words of a sentence, over the uniformly sampled window sizes."""
    in_window = [abs(i - j) <= radius for i, j, radius in product(range(size), range(size), range(1, window + 1)) if i != j]
    return sum(in_window) / window


def test_count_pairs_is_mean_over_window_sizes():
    for window, lengths in product((1, 2, 5), ([1], [2, 3], [9, 4, 1])):
        assert SkipGram(window=window).count_predictions(np.array(lengths, float)) == pytest.approx(
            sum(count_pairs_by_loop(size, window) for size in lengths)
        )


def test_skip_gram_flops_by_pair_and_cbow_flops_by_word(corpus):
    open_corpus = Corpus.open(corpus)
    pairs, words = (
        sum(count_pairs_by_loop(size, 3) for size in sentence_lengths(open_corpus)),
        sum(sentence_lengths(open_corpus)),
    )
    settings = {"vector_size": 10, "window": 3, "negative": 4, "sample": 0.0}
    assert epoch_flops(SkipGram(**settings), open_corpus) == pytest.approx(3 * 2 * 10 * pairs * 5)
    assert epoch_flops(Cbow(**settings), open_corpus) == pytest.approx(3 * 2 * 10 * words * 5)
    assert epoch_flops(SkipGram(**settings | {"sample": 1e-3}), open_corpus) < 0.5 * epoch_flops(
        SkipGram(**settings), open_corpus
    )


def test_hierarchical_softmax_flops_follow_huffman_paths(corpus):
    open_corpus = Corpus.open(corpus)
    counts = np.bincount(open_corpus.tokens, minlength=len(open_corpus.tokenizer))
    counts[open_corpus.tokenizer.is_special] = 0
    path_nodes = int((build_huffman_paths(counts).lengths * counts).sum())
    assert epoch_flops(Cbow(vector_size=10, hs=True, sample=0.0), open_corpus) == pytest.approx(3 * 2 * 10 * path_nodes)


def test_glove_flops_count_pairs_within_upper_bound(corpus, tmp_path):
    open_corpus, glove = Corpus.open(corpus), Glove(vector_size=8, window=4)
    entries = count_cooccurrences(open_corpus, tmp_path / "counts", 4, "sentence", 1 << 22, lambda done, of: None)
    num_pairs = 2 * len(entries)
    assert glove.count_flops(num_pairs) == 2 * 10 * num_pairs <= glove.expected_flops(open_corpus)
    recipe = from_dict(PretrainRecipe, {"corpus": "-", "out": "-", "objective": "glove", "train": {"epochs": 2}})
    assert (
        count_spent_flops(recipe, 7.0, {"cooccurrences": 5}) == 3 * 2 * 102 * 2 * 5 * 2
        and count_spent_flops(recipe, 7.0, {}) == 7.0
    )


def test_word_vectors_train_whole_epochs_within_budget(corpus):
    open_corpus = Corpus.open(corpus)
    recipe = from_dict(PretrainRecipe, {"corpus": str(corpus), "out": "-", "objective": "skip-gram", "train": {"epochs": 1}})
    flops_per_epoch = epoch_flops(recipe.objective, open_corpus)
    for flops, epochs, expected in ((1e15, 7, 7), (3.5 * flops_per_epoch, 7, 3), (1.0, None, 1)):
        fitted, cost = fit_to_budget(recipe, open_corpus, flops, epochs)
        assert (fitted.train.epochs, fitted.train.steps) == (expected, None) and cost == pytest.approx(
            expected * flops_per_epoch
        )


def test_race_of_word_vectors_and_networks(tmp_path):
    folder = write_files(tmp_path / "data")
    settings = race_settings(folder, tmp_path / "out", budget={"flops": 3e8, "epochs": 1})
    tokenizer = {"kind": "word", "vocab_size": 120}
    objectives = {"word2vec": {"kind": "skip-gram", "vector_size": 16}, "glove": {"kind": "glove", "vector_size": 16}}
    settings["members"] = {name: {"objective": objective, "tokenizer": tokenizer} for name, objective in objectives.items()}
    settings["members"] |= {"bert": {"model": SMALL}}
    result = run.race(from_dict(run.RaceRecipe, settings), quiet=True)
    rows = {member["name"]: member for member in result["members"]}
    for name in ("word2vec", "glove"):
        assert rows[name]["errors"] == [] and 0 < rows[name]["flops"] < 3e8 and rows[name]["parameters"] > 16 * 80
        assert rows[name]["scores"]["tuned"]["about"]["num_seeds"] == 1 == rows[name]["scores"]["frozen"]["about"]["num_seeds"]
        assert "bits_per_byte" not in rows[name]
    settings["members"]["glove"]["model"] = SMALL
    with pytest.raises(UserError, match=r"members.glove.model has no effect on word vectors, which use objective"):
        build_entries(from_dict(run.RaceRecipe, settings), tmp_path / "out", Console(True))
