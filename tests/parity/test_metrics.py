"""Every metric equals that of scikit-learn or scipy, on random inputs and on edge cases."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from sklearn import metrics as sklearn

from bertsmith.metrics import calibration, intervals
from bertsmith.metrics import scores as scores_

CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(action="ignore"):  # undefined metrics: their values are compared
        yield


def label_cases():
    rng = np.random.default_rng(0)
    yield from ((rng.integers(0, k, n), rng.integers(0, k, n)) for k in (2, 3, 17, 300) for n in (1, 2, 50, 3000))
    yield np.zeros(9, int), np.zeros(9, int)  # constant, both
    yield np.zeros(9, int), np.arange(9) % 3  # constant predictions
    yield np.arange(9) % 3, np.ones(9, int)  # constant references
    yield np.zeros(9, int), np.ones(9, int)  # always wrong
    yield np.array([0, 5, 5, 0]), np.array([0, 0, 7, 0])  # labels only predicted, only gold, and gaps between
    yield np.array([-1, 1, 1, -1]), np.array([1, 1, -1, -1])  # labels below 0
    yield np.array(["猫", "dog", "dog"]), np.array(["dog", "dog", "bird"])
    yield np.array([0] * 99_999 + [1]), np.array([1] + [0] * 99_999)  # hardly any positives


@pytest.mark.parametrize("pair", list(label_cases()), ids=lambda pair: f"{len(pair[0])}-{len({*pair[1].tolist()})}")
def test_classification_metrics_match_sklearn(pair):
    predictions, references = pair
    np.testing.assert_allclose(
        scores_.accuracy(predictions, references), sklearn.accuracy_score(references, predictions), **CLOSE
    )
    np.testing.assert_allclose(
        scores_.f1_macro(predictions, references), sklearn.f1_score(references, predictions, average="macro"), **CLOSE
    )
    np.testing.assert_allclose(
        scores_.f1_micro(predictions, references), sklearn.f1_score(references, predictions, average="micro"), **CLOSE
    )
    np.testing.assert_allclose(
        scores_.matthews(predictions, references), sklearn.matthews_corrcoef(references, predictions), **CLOSE
    )
    labels = sorted({*predictions.tolist(), *references.tolist()})
    expected = sklearn.confusion_matrix(references, predictions, labels=labels)
    assert scores_.confusion_matrix(predictions.tolist(), references.tolist(), labels).tolist() == expected.tolist()
    for label in labels[:5]:
        expected = sklearn.f1_score(references, predictions, labels=[label], average=None)[0]
        np.testing.assert_allclose(scores_.f1(predictions, references, positive=label), expected, **CLOSE)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12))
def test_binary_metrics_match_sklearn(pairs):
    predictions, references = np.array(pairs).T
    expected = sklearn.f1_score(references, predictions, labels=[0, 1], pos_label=1, zero_division=0)
    np.testing.assert_allclose(scores_.f1(predictions, references), expected, **CLOSE)
    np.testing.assert_allclose(
        scores_.matthews(predictions, references), sklearn.matthews_corrcoef(references, predictions), **CLOSE
    )


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 7, 400])
def test_multi_label_metrics_match_sklearn(share, count):
    rng = np.random.default_rng(1)
    references = rng.random((count, 6)) < 0.2
    predictions = rng.random((count, 6)) < share
    references[:, 4:], predictions[:, 5] = False, False  # a label that is never gold, and one that is never predicted either
    np.testing.assert_allclose(
        scores_.subset_accuracy(predictions, references), sklearn.accuracy_score(references, predictions), **CLOSE
    )
    for ours, average in [(scores_.f1_macro_multi_label, "macro"), (scores_.f1_micro_multi_label, "micro")]:
        np.testing.assert_allclose(
            ours(predictions, references), sklearn.f1_score(references, predictions, average=average), **CLOSE
        )


def number_cases():
    rng = np.random.default_rng(2)
    for count in (2, 3, 40, 3000):
        references = rng.normal(size=count)
        yield references + rng.normal(size=count), references
        yield rng.integers(0, 6, count) / 5, np.round(references, 1)  # ties
    values = rng.normal(size=50)
    yield np.ones(50), values  # constant
    yield values, np.full(50, -3.3)
    yield values, values * -2  # exactly linear
    yield values * 1e-200, values**3  # squares that underflow
    yield values * 1e200, values**3  # squares that overflow
    yield values + 1e9, values  # little spread far from 0
    yield np.array([0.0, -0.0, 1.0]), np.array([0, 1, 2])
    yield np.array([1.0] * 49 + [2.0]), np.array([1.0] * 49 + [5.0])


@pytest.mark.parametrize("pair", list(number_cases()), ids=lambda pair: str(len(pair[0])))
def test_correlations_match_scipy(pair):
    np.testing.assert_allclose(scores_.pearson(*pair), stats.pearsonr(*pair).statistic, **CLOSE)
    np.testing.assert_allclose(scores_.spearman(*pair), stats.spearmanr(*pair).statistic, **CLOSE)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_average_ranks_match_scipy(values):
    assert scores_.average_ranks(np.array(values)).tolist() == stats.rankdata(values).tolist()


@pytest.mark.parametrize(("only", "other"), [(0, 0), (1, 0), (0, 6), (5, 5), (12, 31), (400, 520), (3000, 3100)])
def test_mcnemar_matches_scipy_binomtest(only, other):
    references = np.ones(only + other + 10, int)
    first, second = references.copy(), references.copy()
    second[:only], first[only : only + other] = 0, 0
    expected = stats.binomtest(only, only + other, 0.5).pvalue if only + other else 1.0
    np.testing.assert_allclose(intervals.mcnemar(first, second, references), expected, rtol=1e-9, atol=1e-12)


def test_fit_temperature_maximizes_likelihood():
    rng = np.random.default_rng(3)
    logits, references = rng.normal(size=(500, 4)) * 6, rng.integers(0, 4, 500)
    references = np.where(rng.random(500) < 0.6, logits.argmax(1), references)

    def nll(log_temperature):
        return sklearn.log_loss(
            references,
            np.exp(logits / np.exp(log_temperature) - np.logaddexp.reduce(logits / np.exp(log_temperature), 1)[:, None]),
        )

    expected = optimize.minimize_scalar(nll, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x
    assert np.log(calibration.fit_temperature(logits, references)) == pytest.approx(expected, abs=1e-6)


def test_expected_calibration_error_matches_definition():
    rng = np.random.default_rng(4)
    confidence = rng.random(2000)
    correct = rng.random(2000) < confidence**2
    total = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True):
        in_bin = (confidence > low) & (confidence <= high)
        total += in_bin.mean() * abs(confidence[in_bin].mean() - correct[in_bin].mean())
    np.testing.assert_allclose(calibration.expected_calibration_error(confidence, correct), total, **CLOSE)
