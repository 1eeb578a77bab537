"""Scores made of rows are those that tasks give, and intervals mean what they say."""

import math

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.evaluation.measures import (
    MetricResult,
    choose_slice_metric,
    find_correct,
    get_primary_metric,
    list_metrics,
    resolve_best_metric,
)
from bertsmith.metrics import scores as scores_
from bertsmith.metrics.intervals import bootstrap_interval
from bertsmith.tasks import TokenClassification
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.scorers.conlleval import entity_scores
from bertsmith.tasks.token_classification import TokenClassificationPrediction
from tests.evaluation.builders import EVERY, asked, finished, numbered, tagged

every_kind = pytest.mark.parametrize("kind", EVERY)


@every_kind
def test_scores_of_rows_are_those_of_the_task(kind):
    judged = EVERY[kind]()
    told = {name: value for name, value in judged.scores.items() if not name.startswith("best_")}
    assert {name: measure.score for name, measure in judged.measures.items()} == pytest.approx(told)
    assert get_primary_metric(judged.task) in told and set(list_metrics(judged.task)) == set(told)


def test_parts_of_speech_have_accuracy_alone():
    sentences = [Sentence(tokens=("a", "cat"), tags=("DET", "NOUN")), Sentence(tokens=("run",), tags=("VERB",))]
    judged = finished(
        TokenClassification(labels=("DET", "NOUN", "VERB")),
        sentences,
        [TokenClassificationPrediction(("DET", "VERB")), TokenClassificationPrediction(("VERB",))],
    )
    assert {name: measure.score for name, measure in judged.metrics.items()} == {"accuracy": 2 / 3}
    assert get_primary_metric(judged.task) == "accuracy" and list_metrics(judged.task) == ["accuracy"]


@pytest.mark.parametrize(("kind", "main", "other"), [("answer", "f1", "exact"), ("many", "f1_micro", "accuracy"),
                                                     ("tag", "f1", "recall"), ("similar", "spearman", "pearson")])  # fmt: skip
def test_runs_are_chosen_by_the_headline_unless_another_score_is_named(kind, main, other):
    task = EVERY[kind]().task
    assert resolve_best_metric(task) == get_primary_metric(task) == main and resolve_best_metric(task, other) == other
    with pytest.raises(UserError, match=f"best=loudness is not a score of this task, which has .*{other}"):
        resolve_best_metric(task, "loudness")


@every_kind
def test_an_interval_holds_its_score(kind):
    judged = EVERY[kind]()
    for name, found in judged.intervals.items():
        assert found.low < found.value == judged.metrics[name].score < found.high, name


def test_entities_are_resampled_by_sentence_exactly_as_the_scorer_would():
    judged = tagged(60)
    said, gold = [one.tags for one in judged.predictions], [one.tags for one in judged.examples]
    for name in ("f1", "precision", "recall", "f1.PER"):
        slow = bootstrap_interval(
            lambda a, t, name=name: entity_scores(a, t).get(name, 0.0), said, gold, seed=0, num_resamples=40
        )
        fast = judged.metrics[name].compute_interval(num_resamples=40)
        assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high)), name


def test_answerable_questions_are_resampled_with_the_others():
    judged = asked()
    there = np.array([bool(one.answers) for one in judged.examples])
    exact = judged.task.per_example_scores(judged.predictions, judged.examples)[0]
    slow = bootstrap_interval(
        lambda a, t: np.mean([x for x, y in zip(a, t, strict=True) if y]), exact, there, seed=0, num_resamples=40
    )
    fast = judged.metrics["has_answer_exact"].compute_interval(num_resamples=40)
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high))


def test_about_95_of_100_intervals_hold_what_is_true():
    held = 0
    for seed in range(100):
        hits = (np.random.default_rng(seed).random(150) < 0.8).astype(int)
        found = MetricResult(scores_.accuracy, hits, np.ones(150, int)).compute_interval(num_resamples=300)
        held += found.low <= 0.8 <= found.high
    assert 88 <= held <= 100


@pytest.mark.parametrize(("hit", "low", "high"), [(1, 0.7225, 1.0), (0, 0.0, 0.2775)])
def test_ten_right_of_ten_is_no_certainty(hit, low, high):
    """The bounds are Wilson's, as scipy gives them."""
    found = MetricResult(scores_.accuracy, np.full(10, hit), np.ones(10, int)).compute_interval()
    assert (found.value, found.low, found.high) == pytest.approx((hit, low, high), abs=1e-4)


def test_a_single_number_has_no_interval():
    found = MetricResult(scores_.mean_score, np.array([0.3]), np.zeros(1), lower_is_better=True).compute_interval()
    assert found.value == 0.3 and math.isnan(found.low) and math.isnan(found.high)


def test_numbers_are_compared_by_how_far_off_they_are():
    judged = numbered()
    name, measure = choose_slice_metric(judged.task, judged.metrics)
    off = [abs(said.value - one.label) for said, one in zip(judged.predictions, judged.examples, strict=True)]
    assert name == "mean error" and measure.lower_is_better and measure.score == pytest.approx(np.mean(off))
    assert find_correct(judged.task, judged.predictions, judged.examples) is None


@pytest.mark.parametrize(
    ("kind", "name"), [("classify", "accuracy"), ("many", "accuracy"), ("answer", "exact"), ("choose", "accuracy")]
)
def test_what_is_right_is_the_share_the_score_says(kind, name):
    judged = EVERY[kind]()
    hit = find_correct(judged.task, judged.answers, judged.examples)
    assert hit.mean() == pytest.approx(judged.scores[name])
