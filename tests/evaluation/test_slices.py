"""Slices of the examples: they partition the examples, and small slices are never called significant."""

import numpy as np
import pytest

from bertsmith.evaluation.slices import MIN_EXAMPLES, Slice, compute_slices, find_weak_slices
from bertsmith.metrics.intervals import ConfidenceInterval
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.evaluation import MAKE_EVALUATION, evaluation_from_logits, make_classification


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def get_slicing(evaluation, tokenizer, by, max_length=64):
    return next(slicing for slicing in compute_slices(evaluation, tokenizer, max_length) if slicing.by == by)


@pytest.mark.parametrize("kind", MAKE_EVALUATION)
def test_slices_partition_the_examples(tokenizer, kind):
    evaluation = MAKE_EVALUATION[kind]()
    slicings = compute_slices(evaluation, tokenizer, 22)
    assert {"length in tokens", "maximum length of the model"} <= {slicing.by for slicing in slicings}
    for slicing in slicings:
        total = sum(part.count for part in slicing.slices)
        assert total == len(evaluation.examples) or (
            kind == "many" and slicing.by == "label" and total > len(evaluation.examples)
        ), slicing.by


def test_slice_scores_weighted_by_count_give_overall_score(tokenizer):
    evaluation = make_classification(pair=True)
    for slicing in compute_slices(evaluation, tokenizer, 16):
        mean = sum(part.count * part.score.value for part in slicing.slices) / len(evaluation.examples)
        assert mean == pytest.approx(evaluation.scores["accuracy"]), slicing.by


def test_slices_assign_examples_by_length_unknown_and_split_words(tokenizer):
    texts = ["the way", "the way 🙂", "the 🙂 🙂 way", "thex way", " ".join(["the"] * 20)]
    evaluation = evaluation_from_logits(
        make_classification().task, [ClassificationExample(text, label="bad") for text in texts], np.eye(3)[[0, 0, 0, 1, 1]] * 9
    )
    criteria = ("number of [UNK] tokens", "words split into subwords", "length in tokens", "maximum length of the model")
    counts = {by: {part.name: part.count for part in get_slicing(evaluation, tokenizer, by, 10).slices} for by in criteria}
    assert counts["number of [UNK] tokens"] == {"none": 3, "one": 1, "two or more": 1}
    assert counts["words split into subwords"] == {"none": 4, "more than 25%": 1}
    assert counts["length in tokens"] == {"up to 16": 4, "17–20": 1}
    assert counts["maximum length of the model"] == {"up to 10 tokens": 4, "longer than 10 tokens": 1}


def test_slices_of_pairs_by_token_overlap(tokenizer):
    pairs = [("the way", "the way"), ("the way", "one had"), ("the way", "the one had been")]
    evaluation = evaluation_from_logits(
        make_classification().task, [ClassificationExample(*pair, "bad") for pair in pairs], np.eye(3)[[0, 0, 1]]
    )
    counts = {part.name: part.count for part in get_slicing(evaluation, tokenizer, "token overlap of the two texts").slices}
    assert counts == {"0%–25%": 1, "25%–50%": 1, "75%–100%": 1}


def test_slices_group_rare_labels(tokenizer):
    labels = tuple(f"label-{i}" for i in range(40))
    evaluation = make_classification(400, labels=labels)
    slices = get_slicing(evaluation, tokenizer, "label").slices
    assert len(slices) == 25 and slices[-1].name == "other" and sum(part.count for part in slices) == 400
    assert [part.count for part in slices[:-1]] == sorted((part.count for part in slices[:-1]), reverse=True)


def test_slice_f1_without_gold_entities_is_nan(tokenizer):
    evaluation = MAKE_EVALUATION["tag"]()
    no_entities = next(part for part in get_slicing(evaluation, tokenizer, "number of entities").slices if part.name == "none")
    assert np.isnan(no_entities.score.value)


def test_slice_is_significant_only_if_large_and_interval_excludes_overall():
    interval = ConfidenceInterval(0.5, 0.4, 0.6)
    assert Slice("a", MIN_EXAMPLES, interval).is_significant(0.8) and not Slice("a", MIN_EXAMPLES - 1, interval).is_significant(
        0.8
    )
    assert not Slice("a", 500, ConfidenceInterval(0.78, 0.7, 0.85)).is_significant(0.8)
    assert not Slice("a", 500, ConfidenceInterval(np.nan, np.nan, np.nan)).is_significant(0.8)


def test_find_weak_slices_returns_weakest_label(tokenizer):
    evaluation = make_classification(600, margin=6.0)
    logits = evaluation.logits.copy()
    is_fair = np.array([example.label == "fair" for example in evaluation.examples])
    logits[is_fair] = logits[is_fair][:, [1, 0, 2]]  # "fair" is predicted as "bad"
    evaluation = evaluation_from_logits(evaluation.task, evaluation.examples, logits)
    by, weakest = find_weak_slices(compute_slices(evaluation, tokenizer, 64), evaluation.scores["accuracy"])[0]
    assert (by, weakest.name) == ("label", "fair") and weakest.score.value < 0.1
