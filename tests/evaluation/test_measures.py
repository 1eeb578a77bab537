"""Scores made of rows are those that tasks give, and intervals mean what they say."""

import math

import numpy as np
import pytest

from bertsmith.errors import BadInput
from bertsmith.evaluation.measures import Measure, deciding, headline, names, right, sliced
from bertsmith.metrics import scores as scores_
from bertsmith.metrics.intervals import interval
from bertsmith.tasks import Tag
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.scorers.conlleval import scores
from bertsmith.tasks.token_classification import Tagged
from tests.evaluation.builders import EVERY, asked, finished, numbered, tagged

every_kind = pytest.mark.parametrize("kind", EVERY)


@every_kind
def test_scores_of_rows_are_those_of_the_task(kind):
    judged = EVERY[kind]()
    told = {name: value for name, value in judged.scores.items() if not name.startswith("best_")}
    assert {name: measure.score for name, measure in judged.measures.items()} == pytest.approx(told)
    assert headline(judged.task) in told and set(names(judged.task)) == set(told)


def test_parts_of_speech_have_accuracy_alone():
    sentences = [Sentence(tokens=("a", "cat"), tags=("DET", "NOUN")), Sentence(tokens=("run",), tags=("VERB",))]
    judged = finished(Tag(labels=("DET", "NOUN", "VERB")), sentences, [Tagged(("DET", "VERB")), Tagged(("VERB",))])
    assert {name: measure.score for name, measure in judged.measures.items()} == {"accuracy": 2 / 3}
    assert headline(judged.task) == "accuracy" and names(judged.task) == ["accuracy"]


@pytest.mark.parametrize(("kind", "main", "other"), [("answer", "f1", "exact"), ("many", "f1_micro", "accuracy"),
                                                     ("tag", "f1", "recall"), ("similar", "spearman", "pearson")])  # fmt: skip
def test_runs_are_chosen_by_the_headline_unless_another_score_is_named(kind, main, other):
    task = EVERY[kind]().task
    assert deciding(task) == headline(task) == main and deciding(task, other) == other
    with pytest.raises(BadInput, match=f"best=loudness is not a score of this task, which has .*{other}"):
        deciding(task, "loudness")


@every_kind
def test_an_interval_holds_its_score(kind):
    judged = EVERY[kind]()
    for name, found in judged.intervals.items():
        assert found.low < found.value == judged.measures[name].score < found.high, name


def test_entities_are_resampled_by_sentence_exactly_as_the_scorer_would():
    judged = tagged(60)
    said, gold = [one.tags for one in judged.answers], [one.tags for one in judged.examples]
    for name in ("f1", "precision", "recall", "f1.PER"):
        slow = interval(lambda a, t, name=name: scores(a, t).get(name, 0.0), said, gold, seed=0, samples=40)
        fast = judged.measures[name].around(samples=40)
        assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high)), name


def test_answerable_questions_are_resampled_with_the_others():
    judged = asked()
    there = np.array([bool(one.answers) for one in judged.examples])
    exact = judged.task.each(judged.answers, judged.examples)[0]
    slow = interval(lambda a, t: np.mean([x for x, y in zip(a, t, strict=True) if y]), exact, there, seed=0, samples=40)
    fast = judged.measures["has_answer_exact"].around(samples=40)
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high))


def test_about_95_of_100_intervals_hold_what_is_true():
    held = 0
    for seed in range(100):
        hits = (np.random.default_rng(seed).random(150) < 0.8).astype(int)
        found = Measure(scores_.accuracy, hits, np.ones(150, int)).around(samples=300)
        held += found.low <= 0.8 <= found.high
    assert 88 <= held <= 100


@pytest.mark.parametrize(("hit", "low", "high"), [(1, 0.7225, 1.0), (0, 0.0, 0.2775)])
def test_ten_right_of_ten_is_no_certainty(hit, low, high):
    """The bounds are Wilson's, as scipy gives them."""
    found = Measure(scores_.accuracy, np.full(10, hit), np.ones(10, int)).around()
    assert (found.value, found.low, found.high) == pytest.approx((hit, low, high), abs=1e-4)


def test_a_single_number_has_no_interval():
    found = Measure(scores_.mean, np.array([0.3]), np.zeros(1), falls=True).around()
    assert found.value == 0.3 and math.isnan(found.low) and math.isnan(found.high)


def test_numbers_are_compared_by_how_far_off_they_are():
    judged = numbered()
    name, measure = sliced(judged.task, judged.measures)
    off = [abs(said.value - one.label) for said, one in zip(judged.answers, judged.examples, strict=True)]
    assert name == "mean error" and measure.falls and measure.score == pytest.approx(np.mean(off))
    assert right(judged.task, judged.answers, judged.examples) is None


@pytest.mark.parametrize(
    ("kind", "name"), [("classify", "accuracy"), ("many", "accuracy"), ("answer", "exact"), ("choose", "accuracy")]
)
def test_what_is_right_is_the_share_the_score_says(kind, name):
    judged = EVERY[kind]()
    hit = right(judged.task, judged.answers, judged.examples)
    assert hit.mean() == pytest.approx(judged.scores[name])
