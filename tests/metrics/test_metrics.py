"""Metrics, bootstrap intervals, significance tests and calibration."""

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
    """Predictions and references of the type a metric takes, agreeing more often than by chance."""
    rng = np.random.default_rng(seed)
    if name in ("pearson", "spearman"):
        references = np.round(rng.normal(size=count), 1)
        return np.round(references + rng.normal(size=count), 1), references
    if name in ("subset_accuracy", "f1_macro_multi_label", "f1_micro_multi_label"):
        references = rng.random((count, 3)) < 0.4
        return references ^ (rng.random((count, 3)) < 0.2), references
    references = rng.integers(0, 2 if name == "f1" else 4, count)
    return np.where(rng.random(count) < 0.7, references, references[::-1]), references


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_batched_inputs_match_single_calls(name):
    predictions, references = map(np.stack, zip(*(sample(name, seed=seed) for seed in range(5)), strict=True))
    single = [
        float(METRICS[name](prediction, reference)) for prediction, reference in zip(predictions, references, strict=True)
    ]
    np.testing.assert_allclose(METRICS[name](predictions, references), single, rtol=0, atol=1e-14)
    assert METRICS[name](references, references).tolist() == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("name", METRICS)
def test_bootstrap_interval_contains_value_and_is_reproducible(name, monkeypatch):
    predictions, references = sample(name)
    interval = bootstrap_interval(name, predictions, references, seed=1, num_resamples=200)
    assert interval.low < interval.value < interval.high and interval.value == float(METRICS[name](predictions, references))
    generic = bootstrap_interval(
        lambda a, t: METRICS[name](a, t), list(predictions), list(references), seed=1, num_resamples=200
    )
    assert (generic.low, generic.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    monkeypatch.setattr(intervals, "MAX_RESAMPLED_VALUES", 1000)
    assert bootstrap_interval(name, predictions, references, seed=1, num_resamples=200) == interval
    intervals_by_seed = [bootstrap_interval(name, predictions, references, seed=seed, num_resamples=3) for seed in range(8)]
    assert len({other.low for other in intervals_by_seed}) > 2


def test_bootstrap_interval_coverage():
    rng = np.random.default_rng(3)
    num_covered = 0
    for seed in range(200):
        correct = (rng.random(150) < 0.8).astype(int)
        interval = bootstrap_interval(
            "accuracy", correct, np.ones(150, int), seed=seed, num_resamples=300, confidence_level=0.9
        )
        num_covered += interval.low <= 0.8 <= interval.high
    assert 0.83 <= num_covered / 200 <= 0.96


def test_metrics_of_string_labels_equal_integer_labels():
    predictions, references = sample("f1")
    names = np.array(["no", "yes"])
    for name in ("accuracy", "f1_macro", "matthews"):
        assert bootstrap_interval(name, names[predictions], names[references], seed=0, num_resamples=50) == bootstrap_interval(
            name, predictions, references, 0, 50
        )
    f1_yes = partial(f1, positive="yes")
    assert bootstrap_interval(f1_yes, names[predictions], names[references], 0, 50) == bootstrap_interval(
        "f1", predictions, references, 0, 50
    )
    with pytest.raises(UserError, match="the labels are strings but positive=1 is not"):
        f1(names[predictions], names[references])


def test_bootstrap_ignores_undefined_resamples():
    interval = bootstrap_interval(
        "pearson", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], seed=0, num_resamples=100
    )  # some resamples have one value three times
    assert (interval.low, interval.value, interval.high) == pytest.approx((1, 1, 1))
    constant = bootstrap_interval("pearson", [1.0, 1.0, 1.0], [1.0, 2.0, 3.0], seed=0, num_resamples=20)
    assert np.isnan([constant.value, constant.low, constant.high]).all()
    assert np.isnan(
        paired_bootstrap_test("pearson", [1.0, 1.0, 1.0], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0], seed=0, num_resamples=20)
    )


def test_paired_bootstrap_and_mcnemar_detect_a_difference():
    references = RNG.integers(0, 2, 300)
    good, bad = (
        np.where(RNG.random(300) < 0.9, references, 1 - references),
        np.where(RNG.random(300) < 0.7, references, 1 - references),
    )
    assert (
        paired_bootstrap_test("accuracy", good, bad, references, seed=0) == 1 / 1001 and mcnemar(good, bad, references) < 1e-6
    )
    assert paired_bootstrap_test("accuracy", good, good, references, seed=0) == 1 and mcnemar(good, good, references) == 1
    assert paired_bootstrap_test("accuracy", good, bad, references, seed=0) == paired_bootstrap_test(
        "accuracy", bad, good, references, seed=0
    )


def test_paired_bootstrap_p_values_are_uniform_for_equal_systems():
    rng, num_significant = np.random.default_rng(5), 0
    for seed in range(200):
        references = np.ones(120, int)
        first, second = (rng.random(120) < 0.8).astype(int), (rng.random(120) < 0.8).astype(int)
        num_significant += paired_bootstrap_test("accuracy", first, second, references, seed=seed, num_resamples=200) < 0.1
    assert 0.04 <= num_significant / 200 <= 0.17


def test_confusion_matrix_has_gold_labels_in_rows():
    assert confusion_matrix(["a", "b", "b"], ["a", "a", "c"], ["a", "b", "c"]).tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
    with pytest.raises(UserError, match="'z' is not one of the labels: a, b"):
        confusion_matrix(["a"], ["z"], ["a", "b"])


def test_expected_calibration_error_and_reliability_bins():
    assert expected_calibration_error([0.9] * 10, [1] * 9 + [0]) == pytest.approx(0)
    assert expected_calibration_error([0.95] * 4 + [0.55] * 4, [1, 1, 0, 0, 1, 1, 1, 1], num_bins=10) == pytest.approx(0.45)
    bins = reliability_bins([0.0, 0.2, 0.21, 1.0], [0, 1, 0, 1], num_bins=5)
    assert [(round(bin_.low, 9), bin_.count) for bin_ in bins] == [(0.0, 2), (0.2, 1), (0.8, 1)]


def test_fit_temperature_recovers_logit_scale():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 3)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)  # labels sampled from softmax(logits)
    fitted = fit_temperature(logits, labels)
    assert fitted == pytest.approx(1, abs=0.1)
    assert fit_temperature(logits * 7, labels) == pytest.approx(7 * fitted, rel=1e-9)
    assert fit_temperature(logits, logits.argmax(1)) == pytest.approx(0.01)
    assert fit_temperature(logits, logits.argmin(1)) == pytest.approx(100)
    with pytest.raises(UserError, match="do not match"):
        fit_temperature(logits, labels[:5])


@pytest.mark.parametrize("name", METRICS)
def test_metrics_reject_empty_and_mismatched_inputs(name):
    predictions, references = sample(name)
    for bad_predictions, bad_references in [
        (predictions[:0], references[:0]),
        (predictions[:-1], references),
        (predictions[:1], references),
    ]:
        with pytest.raises(UserError):
            METRICS[name](bad_predictions, bad_references)
        with pytest.raises(UserError):
            bootstrap_interval(name, bad_predictions, bad_references, seed=0, num_resamples=10)


def test_unknown_metric_error():
    with pytest.raises(UserError, match="'acuracy' is not a metric; choose one of accuracy, f1"):
        bootstrap_interval("acuracy", [1], [1], seed=0)
