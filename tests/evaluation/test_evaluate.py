"""`evaluate_model`: temperature and threshold tuning, intervals in the card, unlabeled examples."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.evaluation.evaluate import evaluate_model
from bertsmith.tasks import QuestionAnswering, TextClassification, TokenClassification
from bertsmith.tasks.base import EncodedExamples
from bertsmith.tasks.classification import ClassificationExample
from tests.support.evaluation import make_classification, make_multi_label, make_tagging


class FixedScoresPredictor:
    """A predictor that returns fixed logits."""

    def __init__(self, task, scores):
        self.task, self.fixed_scores = task, scores
        self.tokenizer, self.max_length = None, 64

    def require_task(self):
        return self.task

    def compute_outputs(self, encoded):
        return self.fixed_scores


@pytest.fixture
def encode_without_tokenizer(monkeypatch):
    """Encodes each example as one dummy sequence, so that no tokenizer is needed."""

    def encode(self, examples, tokenizer, max_length):
        count = len(examples)
        return EncodedExamples(
            [np.zeros(1, np.int64)] * count, [np.zeros(1, np.int64)] * count, np.arange(count), {}, [None] * count
        )

    monkeypatch.setattr(TextClassification, "encode", encode)


def mean_nll(task, logits, examples):
    if task.multi_label:
        gold = task.label_matrices([], examples)[1]
        return -np.log(np.where(gold, task.probabilities(logits), 1 - task.probabilities(logits))).mean()
    probs = task.probabilities(logits)
    return -np.mean(
        [
            np.log(example_probs[task.labels.index(example.label)])
            for example_probs, example in zip(probs, examples, strict=True)
        ]
    )


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_temperature_minimizes_nll_and_keeps_predictions(encode_without_tokenizer, scale):
    evaluation = make_classification(scale=scale)
    untuned, tuned = (
        evaluate_model(FixedScoresPredictor(evaluation.task, evaluation.logits), evaluation.examples, tune=tune)
        for tune in (False, True)
    )
    assert untuned.task.temperature == 1.0 and mean_nll(tuned.task, evaluation.logits, evaluation.examples) < mean_nll(
        untuned.task, evaluation.logits, evaluation.examples
    )
    assert [prediction.label for prediction in tuned.predictions] == [
        prediction.label for prediction in untuned.predictions
    ] and tuned.scores == untuned.scores
    nearby = [msgspec.structs.replace(tuned.task, temperature=tuned.task.temperature * factor) for factor in (0.9, 1.1)]
    assert min(mean_nll(task, evaluation.logits, evaluation.examples) for task in nearby) > mean_nll(
        tuned.task, evaluation.logits, evaluation.examples
    )


def test_temperature_scales_with_logits(encode_without_tokenizer):
    evaluations = [make_classification(scale=scale) for scale in (1.0, 4.0)]
    first, second = (
        evaluate_model(
            FixedScoresPredictor(evaluation.task, evaluation.logits), evaluation.examples, tune=True
        ).task.temperature
        for evaluation in evaluations
    )
    assert second == pytest.approx(4 * first, rel=1e-6)


@given(st.floats(0.01, 100), st.integers(0, 1000))
def test_temperature_keeps_argmax(temperature, seed):
    logits = np.random.default_rng(seed).normal(size=(20, 5)) * 3
    scaled, unscaled = (
        TextClassification(labels=tuple("abcde"), temperature=temperature),
        TextClassification(labels=tuple("abcde")),
    )
    assert (scaled.probabilities(logits).argmax(-1) == unscaled.probabilities(logits).argmax(-1)).all()
    assert (logits.argmax(-1) == unscaled.probabilities(logits).argmax(-1)).all()


def test_multi_label_temperature_and_threshold_are_tuned(encode_without_tokenizer):
    evaluation = make_multi_label()
    logits = evaluation.logits * 6
    tuned = evaluate_model(FixedScoresPredictor(evaluation.task, logits), evaluation.examples, tune=True)
    assert tuned.task.temperature > 2 and mean_nll(tuned.task, logits, evaluation.examples) < mean_nll(
        evaluation.task, logits, evaluation.examples
    )
    assert (
        tuned.scores["f1_micro"]
        >= evaluate_model(FixedScoresPredictor(evaluation.task, logits), evaluation.examples).scores["f1_micro"]
    )


def test_temperature_is_not_tuned_if_all_predictions_are_correct(encode_without_tokenizer):
    evaluation = make_classification(margin=50.0)
    assert (
        evaluate_model(FixedScoresPredictor(evaluation.task, evaluation.logits), evaluation.examples, tune=True).task
        == evaluation.task
    )


def test_evaluation_card_has_intervals_and_tuned_values(encode_without_tokenizer):
    evaluation = make_classification(scale=3.0)
    card = evaluate_model(FixedScoresPredictor(evaluation.task, evaluation.logits), evaluation.examples, tune=True).card
    assert card["temperature"] != 1.0 and card["threshold"] == 0.5
    accuracy = card["metrics"]["accuracy"]
    low, high = accuracy["confidence_interval"]
    assert low < accuracy["value"] == evaluation.scores["accuracy"] < high
    assert msgspec.json.decode(msgspec.json.encode(card)) == card  # JSON-serializable


def test_evaluate_rejects_text_without_label(encode_without_tokenizer):
    with pytest.raises(UserError, match="has no label"):
        evaluate_model(
            FixedScoresPredictor(TextClassification(labels=("a", "b")), np.zeros((1, 2))), [ClassificationExample("t")]
        )


def test_evaluate_skips_sentences_without_tags(monkeypatch):
    labeled = make_tagging(20)
    mixed = [*labeled.examples, SimpleNamespace(tokens=("x",), tags=None)]
    monkeypatch.setattr(TokenClassification, "encode", lambda *_: None)
    monkeypatch.setattr(TokenClassification, "decode", lambda *_: [*labeled.predictions, labeled.predictions[0]])
    result = evaluate_model(FixedScoresPredictor(labeled.task, None), mixed)
    assert (
        result.examples == labeled.examples
        and result.scores == labeled.scores
        and set(result.intervals) == set(labeled.intervals)
    )


def test_is_labeled_needs_answers_which_may_be_empty():
    labeled = [QuestionAnswering().is_labeled(SimpleNamespace(answers=answers)) for answers in (None, (), ("water",))]
    assert labeled == [False, True, True] and TextClassification().is_labeled(ClassificationExample("t"))
