"""Scores, the intervals around them, and how sure a model may be."""

from functools import partial

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.metrics import intervals
from bertsmith.metrics.calibration import expected_calibration_error, fit_temperature, reliability_bins
from bertsmith.metrics.intervals import bootstrap_interval, mcnemar, paired_bootstrap_test
from bertsmith.metrics.scores import METRICS, confusion_matrix, f1

RNG = np.random.default_rng(0)


def sample(name, count=40, seed=0):
    """Answers and truths of the kind that a metric judges, alike more often than by chance."""
    rng = np.random.default_rng(seed)
    if name in ("pearson", "spearman"):
        truths = np.round(rng.normal(size=count), 1)
        return np.round(truths + rng.normal(size=count), 1), truths
    if name in ("exact", "f1_macro_many", "f1_micro_many"):
        truths = rng.random((count, 3)) < 0.4
        return truths ^ (rng.random((count, 3)) < 0.2), truths
    truths = rng.integers(0, 2 if name == "f1" else 4, count)
    return np.where(rng.random(count) < 0.7, truths, truths[::-1]), truths


@pytest.mark.parametrize("name", METRICS)
def test_many_sets_at_once_score_as_each_alone(name):
    answers, truths = map(np.stack, zip(*(sample(name, seed=seed) for seed in range(5)), strict=True))
    alone = [float(METRICS[name](a, t)) for a, t in zip(answers, truths, strict=True)]
    np.testing.assert_allclose(METRICS[name](answers, truths), alone, rtol=0, atol=1e-14)
    assert METRICS[name](truths, truths).tolist() == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("name", METRICS)
def test_an_interval_holds_its_score_and_repeats(name, monkeypatch):
    answers, truths = sample(name)
    found = bootstrap_interval(name, answers, truths, seed=1, num_resamples=200)
    assert found.low < found.value < found.high and found.value == float(METRICS[name](answers, truths))
    slow = bootstrap_interval(lambda a, t: METRICS[name](a, t), list(answers), list(truths), seed=1, num_resamples=200)
    assert (slow.low, slow.high) == pytest.approx((found.low, found.high), abs=1e-12)
    monkeypatch.setattr(intervals, "MAX_RESAMPLED_VALUES", 1000)
    assert bootstrap_interval(name, answers, truths, seed=1, num_resamples=200) == found
    draws = [bootstrap_interval(name, answers, truths, seed=seed, num_resamples=3) for seed in range(8)]
    assert len({one.low for one in draws}) > 2


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    held = 0
    for trial in range(200):
        right = (rng.random(150) < 0.8).astype(int)
        found = bootstrap_interval("accuracy", right, np.ones(150, int), seed=trial, num_resamples=300, confidence_level=0.9)
        held += found.low <= 0.8 <= found.high
    assert 0.83 <= held / 200 <= 0.96


def test_words_are_judged_as_numbers_are():
    answers, truths = sample("f1")
    words = np.array(["no", "yes"])
    for name in ("accuracy", "f1_macro", "matthews"):
        assert bootstrap_interval(name, words[answers], words[truths], seed=0, num_resamples=50) == bootstrap_interval(
            name, answers, truths, 0, 50
        )
    yes = partial(f1, positive="yes")
    assert bootstrap_interval(yes, words[answers], words[truths], 0, 50) == bootstrap_interval("f1", answers, truths, 0, 50)
    with pytest.raises(UserError, match="f1 is of one label"):
        f1(words[answers], words[truths])


def test_resamples_without_a_score_are_left_out():
    found = bootstrap_interval(
        "pearson", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], seed=0, num_resamples=100
    )  # some draw one value three times
    assert (found.low, found.value, found.high) == pytest.approx((1, 1, 1))
    constant = bootstrap_interval("pearson", [1.0, 1.0, 1.0], [1.0, 2.0, 3.0], seed=0, num_resamples=20)
    assert np.isnan([constant.value, constant.low, constant.high]).all()
    assert np.isnan(
        paired_bootstrap_test("pearson", [1.0, 1.0, 1.0], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0], seed=0, num_resamples=20)
    )


def test_a_paired_test_sees_a_difference_and_only_a_difference():
    truths = RNG.integers(0, 2, 300)
    good, bad = np.where(RNG.random(300) < 0.9, truths, 1 - truths), np.where(RNG.random(300) < 0.7, truths, 1 - truths)
    assert paired_bootstrap_test("accuracy", good, bad, truths, seed=0) == 1 / 1001 and mcnemar(good, bad, truths) < 1e-6
    assert paired_bootstrap_test("accuracy", good, good, truths, seed=0) == 1 and mcnemar(good, good, truths) == 1
    assert paired_bootstrap_test("accuracy", good, bad, truths, seed=0) == paired_bootstrap_test(
        "accuracy", bad, good, truths, seed=0
    )


def test_paired_p_values_of_equal_systems_are_spread_evenly():
    rng, small = np.random.default_rng(5), 0
    for trial in range(200):
        truths = np.ones(120, int)
        a, b = (rng.random(120) < 0.8).astype(int), (rng.random(120) < 0.8).astype(int)
        small += paired_bootstrap_test("accuracy", a, b, truths, seed=trial, num_resamples=200) < 0.1
    assert 0.04 <= small / 200 <= 0.17


def test_confusion_counts_true_labels_in_rows():
    assert confusion_matrix(["a", "b", "b"], ["a", "a", "c"], ["a", "b", "c"]).tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
    with pytest.raises(UserError, match="'z' is not one of the labels: a, b"):
        confusion_matrix(["a"], ["z"], ["a", "b"])


def test_calibration_error_is_the_gap_between_sure_and_right():
    assert expected_calibration_error([0.9] * 10, [1] * 9 + [0]) == pytest.approx(0)
    assert expected_calibration_error([0.95] * 4 + [0.55] * 4, [1, 1, 0, 0, 1, 1, 1, 1], num_bins=10) == pytest.approx(0.45)
    found = reliability_bins([0.0, 0.2, 0.21, 1.0], [0, 1, 0, 1], num_bins=5)
    assert [(round(one.low, 9), one.count) for one in found] == [(0.0, 2), (0.2, 1), (0.8, 1)]


def test_temperature_undoes_what_was_done_to_scores():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4000, 3)) * 2
    draws = (scores + rng.gumbel(size=scores.shape)).argmax(1)  # labels as probable as the scores say
    fitted = fit_temperature(scores, draws)
    assert fitted == pytest.approx(1, abs=0.1)
    assert fit_temperature(scores * 7, draws) == pytest.approx(7 * fitted, rel=1e-9)
    assert fit_temperature(scores, scores.argmax(1)) == pytest.approx(0.01)
    assert fit_temperature(scores, scores.argmin(1)) == pytest.approx(100)
    with pytest.raises(UserError, match="do not go with"):
        fit_temperature(scores, draws[:5])


@pytest.mark.parametrize("name", METRICS)
def test_nothing_and_unequal_numbers_are_refused(name):
    answers, truths = sample(name)
    for a, t in [(answers[:0], truths[:0]), (answers[:-1], truths), (answers[:1], truths)]:
        with pytest.raises(UserError):
            METRICS[name](a, t)
        with pytest.raises(UserError):
            bootstrap_interval(name, a, t, seed=0, num_resamples=10)


def test_a_metric_nobody_knows_is_named():
    with pytest.raises(UserError, match="'acuracy' is not a metric; known: accuracy, f1"):
        bootstrap_interval("acuracy", [1], [1], seed=0)
