"""Slices: every example is in one of each kind, and few examples do not mislead."""

import numpy as np
import pytest

from bertsmith.evaluation.slices import MIN_EXAMPLES, Slice, compute_slices, find_weak_slices
from bertsmith.metrics.intervals import ConfidenceInterval
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.evaluation.builders import EVERY, classified, of


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def cut(judged, tokenizer, by, length=64):
    return next(cut for cut in compute_slices(judged, tokenizer, length) if cut.by == by)


@pytest.mark.parametrize("kind", EVERY)
def test_slices_add_up(tokenizer, kind):
    judged = EVERY[kind]()
    found = compute_slices(judged, tokenizer, 22)
    assert {"length in tokens", "room in the model"} <= {one.by for one in found}
    for one in found:
        total = sum(part.count for part in one.slices)
        assert total == len(judged.examples) or (kind == "many" and one.by == "label" and total > len(judged.examples)), one.by


def test_scores_of_slices_by_their_counts_make_the_whole(tokenizer):
    judged = classified(pair=True)
    for one in compute_slices(judged, tokenizer, 16):
        mean = sum(part.count * part.score.value for part in one.slices) / len(judged.examples)
        assert mean == pytest.approx(judged.scores["accuracy"]), one.by


def test_examples_are_put_where_they_belong(tokenizer):
    texts = ["the way", "the way 🙂", "the 🙂 🙂 way", "thex way", " ".join(["the"] * 20)]
    judged = of(classified().task, [ClassificationExample(text, label="bad") for text in texts], np.eye(3)[[0, 0, 0, 1, 1]] * 9)
    names = {by: {part.name: part.count for part in cut(judged, tokenizer, by, 10).slices}
             for by in ("unknown words", "words in several pieces", "length in tokens", "room in the model")}  # fmt: skip
    assert names["unknown words"] == {"none": 3, "one": 1, "two or more": 1}
    assert names["words in several pieces"] == {"none": 4, "more than 25%": 1}
    assert names["length in tokens"] == {"up to 16": 4, "17–20": 1}
    assert names["room in the model"] == {"fits": 4, "longer than 10 tokens": 1}


def test_pairs_are_parted_by_what_they_have_in_common(tokenizer):
    pairs = [("the way", "the way"), ("the way", "one had"), ("the way", "the one had been")]
    judged = of(classified().task, [ClassificationExample(*pair, "bad") for pair in pairs], np.eye(3)[[0, 0, 1]])
    found = {part.name: part.count for part in cut(judged, tokenizer, "words in common").slices}
    assert found == {"0%–25%": 1, "25%–50%": 1, "75%–100%": 1}


def test_rare_labels_share_a_slice(tokenizer):
    labels = tuple(f"label-{i}" for i in range(40))
    judged = classified(400, labels=labels)
    found = cut(judged, tokenizer, "label").slices
    assert len(found) == 25 and found[-1].name == "other" and sum(part.count for part in found) == 400
    assert [part.count for part in found[:-1]] == sorted((part.count for part in found[:-1]), reverse=True)


def test_f1_where_there_is_nothing_to_find_is_no_score(tokenizer):
    judged = EVERY["tag"]()
    none = next(part for part in cut(judged, tokenizer, "entities in it").slices if part.name == "none")
    assert np.isnan(none.score.value)


def test_a_slice_is_said_to_differ_only_if_it_is_large_and_its_interval_says_so():
    worse = ConfidenceInterval(0.5, 0.4, 0.6)
    assert Slice("a", MIN_EXAMPLES, worse).is_significant(0.8) and not Slice("a", MIN_EXAMPLES - 1, worse).is_significant(0.8)
    assert not Slice("a", 500, ConfidenceInterval(0.78, 0.7, 0.85)).is_significant(0.8)
    assert not Slice("a", 500, ConfidenceInterval(np.nan, np.nan, np.nan)).is_significant(0.8)


def test_the_weakest_slice_is_found(tokenizer):
    judged = classified(600, margin=6.0)
    raw = judged.logits.copy()
    fair = np.array([one.label == "fair" for one in judged.examples])
    raw[fair] = raw[fair][:, [1, 0, 2]]  # fair is taken for bad
    judged = of(judged.task, judged.examples, raw)
    by, one = find_weak_slices(compute_slices(judged, tokenizer, 64), judged.scores["accuracy"])[0]
    assert (by, one.name) == ("label", "fair") and one.score.value < 0.1
