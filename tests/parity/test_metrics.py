"""Every score is scikit-learn's or scipy's, on random answers and on those that break scorers."""

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
    with warnings.catch_warnings(action="ignore"):  # of scores that are not defined: their values are compared
        yield


def labelled():
    rng = np.random.default_rng(0)
    yield from ((rng.integers(0, k, n), rng.integers(0, k, n)) for k in (2, 3, 17, 300) for n in (1, 2, 50, 3000))
    yield np.zeros(9, int), np.zeros(9, int)  # constant, both
    yield np.zeros(9, int), np.arange(9) % 3  # constant answers
    yield np.arange(9) % 3, np.ones(9, int)  # constant truths
    yield np.zeros(9, int), np.ones(9, int)  # always wrong
    yield np.array([0, 5, 5, 0]), np.array([0, 0, 7, 0])  # classes only answered, only true, and none between
    yield np.array([-1, 1, 1, -1]), np.array([1, 1, -1, -1])  # labels below 0
    yield np.array(["猫", "dog", "dog"]), np.array(["dog", "dog", "bird"])
    yield np.array([0] * 99_999 + [1]), np.array([1] + [0] * 99_999)  # hardly any positives


@pytest.mark.parametrize("pair", list(labelled()), ids=lambda pair: f"{len(pair[0])}-{len({*pair[1].tolist()})}")
def test_scores_of_labels(pair):
    answers, truths = pair
    np.testing.assert_allclose(scores_.accuracy(answers, truths), sklearn.accuracy_score(truths, answers), **CLOSE)
    np.testing.assert_allclose(scores_.f1_macro(answers, truths), sklearn.f1_score(truths, answers, average="macro"), **CLOSE)
    np.testing.assert_allclose(scores_.f1_micro(answers, truths), sklearn.f1_score(truths, answers, average="micro"), **CLOSE)
    np.testing.assert_allclose(scores_.matthews(answers, truths), sklearn.matthews_corrcoef(truths, answers), **CLOSE)
    labels = sorted({*answers.tolist(), *truths.tolist()})
    want = sklearn.confusion_matrix(truths, answers, labels=labels)
    assert scores_.confusion_matrix(answers.tolist(), truths.tolist(), labels).tolist() == want.tolist()
    for label in labels[:5]:
        want = sklearn.f1_score(truths, answers, labels=[label], average=None)[0]
        np.testing.assert_allclose(scores_.f1(answers, truths, positive=label), want, **CLOSE)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12))
def test_binary_scores(pairs):
    answers, truths = np.array(pairs).T
    want = sklearn.f1_score(truths, answers, labels=[0, 1], pos_label=1, zero_division=0)
    np.testing.assert_allclose(scores_.f1(answers, truths), want, **CLOSE)
    np.testing.assert_allclose(scores_.matthews(answers, truths), sklearn.matthews_corrcoef(truths, answers), **CLOSE)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 7, 400])
def test_scores_of_many_labels_at_once(share, count):
    rng = np.random.default_rng(1)
    truths = rng.random((count, 6)) < 0.2
    answers = rng.random((count, 6)) < share
    truths[:, 4:], answers[:, 5] = False, False  # a label that is never true, and one never answered either
    np.testing.assert_allclose(scores_.exact(answers, truths), sklearn.accuracy_score(truths, answers), **CLOSE)
    for ours, average in [(scores_.f1_macro_many, "macro"), (scores_.f1_micro_many, "micro")]:
        np.testing.assert_allclose(ours(answers, truths), sklearn.f1_score(truths, answers, average=average), **CLOSE)


def numbered():
    rng = np.random.default_rng(2)
    for count in (2, 3, 40, 3000):
        truths = rng.normal(size=count)
        yield truths + rng.normal(size=count), truths
        yield rng.integers(0, 6, count) / 5, np.round(truths, 1)  # ties
    values = rng.normal(size=50)
    yield np.ones(50), values  # constant
    yield values, np.full(50, -3.3)
    yield values, values * -2  # a line
    yield values * 1e-200, values**3  # squares that vanish
    yield values * 1e200, values**3  # squares that overflow
    yield values + 1e9, values  # little spread far from 0
    yield np.array([0.0, -0.0, 1.0]), np.array([0, 1, 2])
    yield np.array([1.0] * 49 + [2.0]), np.array([1.0] * 49 + [5.0])


@pytest.mark.parametrize("pair", list(numbered()), ids=lambda pair: str(len(pair[0])))
def test_correlations(pair):
    np.testing.assert_allclose(scores_.pearson(*pair), stats.pearsonr(*pair).statistic, **CLOSE)
    np.testing.assert_allclose(scores_.spearman(*pair), stats.spearmanr(*pair).statistic, **CLOSE)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_ranks_of_ties(values):
    assert scores_.average_ranks(np.array(values)).tolist() == stats.rankdata(values).tolist()


@pytest.mark.parametrize(("only", "other"), [(0, 0), (1, 0), (0, 6), (5, 5), (12, 31), (400, 520), (3000, 3100)])
def test_mcnemar(only, other):
    truths = np.ones(only + other + 10, int)
    left, right = truths.copy(), truths.copy()
    right[:only], left[only : only + other] = 0, 0
    want = stats.binomtest(only, only + other, 0.5).pvalue if only + other else 1.0
    np.testing.assert_allclose(intervals.mcnemar(left, right, truths), want, rtol=1e-9, atol=1e-12)


def test_temperature_is_where_the_likelihood_peaks():
    rng = np.random.default_rng(3)
    scores, truths = rng.normal(size=(500, 4)) * 6, rng.integers(0, 4, 500)
    truths = np.where(rng.random(500) < 0.6, scores.argmax(1), truths)

    def surprise(log):
        return sklearn.log_loss(truths, np.exp(scores / np.exp(log) - np.logaddexp.reduce(scores / np.exp(log), 1)[:, None]))

    want = optimize.minimize_scalar(surprise, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x
    assert np.log(calibration.fit_temperature(scores, truths)) == pytest.approx(want, abs=1e-6)


def test_calibration_error_is_its_definition():
    rng = np.random.default_rng(4)
    sure = rng.random(2000)
    right = rng.random(2000) < sure**2
    total = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True):
        here = (sure > low) & (sure <= high)
        total += here.mean() * abs(sure[here].mean() - right[here].mean())
    np.testing.assert_allclose(calibration.expected_calibration_error(sure, right), total, **CLOSE)
