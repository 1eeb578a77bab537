"""Metrics of per-example arrays equal those of the tasks; confidence intervals have the right coverage."""

import math

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.evaluation.metric_names import resolve_best_metric
from bertsmith.metrics import scores
from bertsmith.metrics.intervals import bootstrap_interval
from bertsmith.metrics.results import MetricResult
from bertsmith.tasks import TokenClassification
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.scorers.conlleval import MatchCounts, count_matches
from bertsmith.tasks.token_classification import TokenClassificationPrediction
from tests.support.evaluation import (
    MAKE_EVALUATION,
    evaluation_from_predictions,
    make_question_answering,
    make_regression,
    make_tagging,
)

every_kind = pytest.mark.parametrize("kind", MAKE_EVALUATION)


@every_kind
def test_metric_results_equal_task_scores(kind):
    evaluation = MAKE_EVALUATION[kind]()
    task_scores = {name: value for name, value in evaluation.scores.items() if not name.startswith("best_")}
    assert {name: result.score for name, result in evaluation.metrics.items()} == pytest.approx(task_scores)
    assert evaluation.task.primary_metric in task_scores and set(evaluation.task.metric_names) == set(task_scores)


def test_pos_tagging_has_accuracy_only():
    sentences = [Sentence(tokens=("a", "cat"), tags=("DET", "NOUN")), Sentence(tokens=("run",), tags=("VERB",))]
    evaluation = evaluation_from_predictions(
        TokenClassification(labels=("DET", "NOUN", "VERB")),
        sentences,
        [TokenClassificationPrediction(("DET", "VERB")), TokenClassificationPrediction(("VERB",))],
    )
    assert {name: result.score for name, result in evaluation.metrics.items()} == {"accuracy": 2 / 3}
    assert evaluation.task.primary_metric == "accuracy" and evaluation.task.metric_names == ["accuracy"]


@pytest.mark.parametrize(("kind", "primary", "other"), [("answer", "f1", "exact"), ("many", "f1_micro", "accuracy"),
                                                     ("tag", "f1", "recall"), ("similar", "spearman", "pearson")])  # fmt: skip
def test_best_metric_is_primary_metric_unless_requested(kind, primary, other):
    task = MAKE_EVALUATION[kind]().task
    assert resolve_best_metric(task) == task.primary_metric == primary and resolve_best_metric(task, other) == other
    with pytest.raises(
        UserError, match=f"metric_for_best_model=loudness is not a metric of this task; choose one of .*{other}"
    ):
        resolve_best_metric(task, "loudness")


@every_kind
def test_confidence_interval_contains_score(kind):
    evaluation = MAKE_EVALUATION[kind]()
    for name, interval in evaluation.intervals.items():
        assert interval.low < interval.value == evaluation.metrics[name].score < interval.high, name


def entity_scores(predicted, gold):
    counts = count_matches(predicted, gold)
    names = ("num_correct", "num_predicted", "num_gold")
    total = MatchCounts(*(sum(getattr(c, name) for c in counts.values()) for name in names))
    types = {f"f1.{name}": c.f1 for name, c in counts.items()}
    return {"f1": total.f1, "precision": total.precision, "recall": total.recall, **types}


def test_entity_bootstrap_matches_scorer_on_resampled_sentences():
    evaluation = make_tagging(60)
    predicted, gold = (
        [sentence.tags for sentence in evaluation.predictions],
        [sentence.tags for sentence in evaluation.examples],
    )
    for name in ("f1", "precision", "recall", "f1.PER"):
        expected = bootstrap_interval(
            lambda a, t, name=name: entity_scores(a, t).get(name, 0.0), predicted, gold, seed=0, num_resamples=40
        )
        interval = evaluation.metrics[name].compute_interval(num_resamples=40)
        assert (interval.value, interval.low, interval.high) == pytest.approx((expected.value, expected.low, expected.high)), (
            name
        )


def test_answerable_bootstrap_resamples_all_questions():
    evaluation = make_question_answering()
    has_answer = np.array([bool(example.answers) for example in evaluation.examples])
    exact = evaluation.task.per_example_scores(evaluation.predictions, evaluation.examples)[0]
    expected = bootstrap_interval(
        lambda a, t: np.mean([x for x, y in zip(a, t, strict=True) if y]), exact, has_answer, seed=0, num_resamples=40
    )
    interval = evaluation.metrics["has_answer_exact"].compute_interval(num_resamples=40)
    assert (interval.value, interval.low, interval.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_confidence_interval_coverage_is_about_95_percent():
    num_covered = 0
    for seed in range(100):
        correct = (np.random.default_rng(seed).random(150) < 0.8).astype(int)
        interval = MetricResult(scores.accuracy, correct, np.ones(150, int)).compute_interval(num_resamples=300)
        num_covered += interval.low <= 0.8 <= interval.high
    assert 88 <= num_covered <= 100


@pytest.mark.parametrize(("correct", "low", "high"), [(1, 0.7225, 1.0), (0, 0.0, 0.2775)])
def test_confidence_interval_of_all_correct_is_wilson_bound(correct, low, high):
    """The bounds equal those of scipy's Wilson interval."""
    interval = MetricResult(scores.accuracy, np.full(10, correct), np.ones(10, int)).compute_interval()
    assert (interval.value, interval.low, interval.high) == pytest.approx((correct, low, high), abs=1e-4)


def test_confidence_interval_of_single_example_is_nan():
    interval = MetricResult(scores.mean_score, np.array([0.3]), np.zeros(1), lower_is_better=True).compute_interval()
    assert interval.value == 0.3 and math.isnan(interval.low) and math.isnan(interval.high)


def test_regression_slice_metric_is_mean_absolute_error():
    evaluation = make_regression()
    name, result = evaluation.task.slice_metric(evaluation.metrics)
    errors = [
        abs(prediction.score - example.label)
        for prediction, example in zip(evaluation.predictions, evaluation.examples, strict=True)
    ]
    assert name == "mean_absolute_error" and result.lower_is_better and result.score == pytest.approx(np.mean(errors))
    assert evaluation.task.find_correct(evaluation.predictions, evaluation.examples) is None


@pytest.mark.parametrize(
    ("kind", "name"), [("classify", "accuracy"), ("many", "accuracy"), ("answer", "exact"), ("choose", "accuracy")]
)
def test_find_correct_mean_equals_accuracy(kind, name):
    evaluation = MAKE_EVALUATION[kind]()
    correct = evaluation.task.find_correct(evaluation.predictions, evaluation.examples)
    assert correct.mean() == pytest.approx(evaluation.scores[name])
