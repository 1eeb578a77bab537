"""Tables of words cost what a loop over their pairs would count."""

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
from bertsmith.race import run
from bertsmith.race.budget import count_spent_flops, fit_to_budget
from bertsmith.race.entries import build_entries
from bertsmith.race.flops import count_pairs, epoch_flops, glove_flops
from bertsmith.word_vectors.hierarchical_softmax import build_huffman_paths
from tests.race.builders import SMALL, files, settings


def sizes(corpus: Corpus) -> list[int]:
    special = corpus.tokenizer.is_special
    starts = corpus.sentence_offsets
    return [int((~special[corpus.tokens[a:b]]).sum()) for a, b in pairwise(starts)]


def by_hand(size: int, window: int) -> float:
    """Neighbours of every word of a sentence, over every window that may be drawn."""
    met = [abs(i - j) <= reach for i, j, reach in product(range(size), range(size), range(1, window + 1)) if i != j]
    return sum(met) / window


def test_neighbours_are_those_of_all_windows_that_may_be_drawn():
    for window, some in product((1, 2, 5), ([1], [2, 3], [9, 4, 1])):
        assert count_pairs(np.array(some, float), window) == pytest.approx(sum(by_hand(size, window) for size in some))


def test_skip_gram_multiplies_for_each_pair_and_cbow_for_each_word(corpus):
    opened = Corpus.open(corpus)
    pairs, words = sum(by_hand(size, 3) for size in sizes(opened)), sum(sizes(opened))
    plain = {"width": 10, "window": 3, "negatives": 4, "sample": 0.0}
    assert epoch_flops(SkipGram(**plain), opened) == pytest.approx(3 * 2 * 10 * pairs * 5)
    assert epoch_flops(Cbow(**plain), opened) == pytest.approx(3 * 2 * 10 * words * 5)
    assert epoch_flops(SkipGram(**plain | {"sample": 1e-3}), opened) < 0.5 * epoch_flops(SkipGram(**plain), opened)


def test_a_tree_multiplies_along_the_path_of_each_word(corpus):
    opened = Corpus.open(corpus)
    counts = np.bincount(opened.tokens, minlength=len(opened.tokenizer))
    counts[opened.tokenizer.is_special] = 0
    turns = int((build_huffman_paths(counts).lengths * counts).sum())
    assert epoch_flops(Cbow(width=10, tree=True, sample=0.0), opened) == pytest.approx(3 * 2 * 10 * turns)


def test_glove_costs_its_counted_pairs_and_no_more_than_all_there_could_be(corpus, tmp_path):
    opened, glove = Corpus.open(corpus), Glove(width=8, window=4)
    entries = count_cooccurrences(opened, tmp_path / "counts", 4, "sentence", 1 << 22, lambda done, of: None)
    twice = 2 * len(entries)
    assert glove_flops(glove, twice) == 3 * 2 * 10 * twice <= epoch_flops(glove, opened)
    recipe = from_dict(PretrainRecipe, {"corpus": "-", "out": "-", "objective": "glove", "train": {"epochs": 2}})
    assert (
        count_spent_flops(recipe, 7.0, {"entries": 5}) == 3 * 2 * 102 * 2 * 5 * 2 and count_spent_flops(recipe, 7.0, {}) == 7.0
    )


def test_tables_are_filled_in_whole_epochs_within_the_budget(corpus):
    opened = Corpus.open(corpus)
    recipe = from_dict(PretrainRecipe, {"corpus": str(corpus), "out": "-", "objective": "skip-gram", "train": {"epochs": 1}})
    each = epoch_flops(recipe.objective, opened)
    for flops, epochs, expected in ((1e15, 7, 7), (3.5 * each, 7, 3), (1.0, None, 1)):
        found, cost = fit_to_budget(recipe, opened, flops, epochs)
        assert (found.train.epochs, found.train.steps) == (expected, None) and cost == pytest.approx(expected * each)


def test_tables_of_words_run_beside_networks(tmp_path):
    folder = files(tmp_path / "data")
    told = settings(folder, tmp_path / "out", budget={"flops": 3e8, "epochs": 1})
    word = {"kind": "word", "size": 120}
    made = {"word2vec": {"kind": "skip-gram", "width": 16}, "glove": {"kind": "glove", "width": 16}}
    told["members"] = {name: {"objective": objective, "tokenizer": word} for name, objective in made.items()}
    told["members"] |= {"bert": {"model": SMALL}}
    found = run.race(from_dict(run.RaceRecipe, told), quiet=True)
    rows = {one["name"]: one for one in found["members"]}
    for name in ("word2vec", "glove"):
        assert rows[name]["faults"] == [] and 0 < rows[name]["flops"] < 3e8 and rows[name]["parameters"] > 16 * 80
        assert rows[name]["scores"]["tuned"]["about"]["seeds"] == 1 == rows[name]["scores"]["frozen"]["about"]["seeds"]
        assert "bits_per_byte" not in rows[name]
    told["members"]["glove"]["model"] = SMALL
    with pytest.raises(UserError, match=r"members.glove.model: a table of words is described by objective"):
        build_entries(from_dict(run.RaceRecipe, told), tmp_path / "out", Console(True))
