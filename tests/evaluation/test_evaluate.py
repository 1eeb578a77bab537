"""A model held against examples: temperature and threshold are fitted where they should be, and scores are told whole."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.evaluation.evaluate import evaluate_model, is_labeled
from bertsmith.tasks import QuestionAnswering, TextClassification, TokenClassification
from bertsmith.tasks.base import EncodedExamples
from bertsmith.tasks.classification import ClassificationExample
from tests.evaluation.builders import classified, several, tagged


class Told:
    """A predictor whose scores are given."""

    def __init__(self, task, scores):
        self.task, self.given = task, scores
        self.tokenizer, self.length = None, 64

    def taught(self):
        return self.task

    def scores(self, encoded):
        return self.given


@pytest.fixture
def plainly(monkeypatch):
    """Tasks whose examples are one sequence each, without a tokenizer."""

    def encode(self, examples, tokenizer, length):
        count = len(examples)
        return EncodedExamples(
            [np.zeros(1, np.int64)] * count, [np.zeros(1, np.int64)] * count, np.arange(count), {}, [None] * count
        )

    monkeypatch.setattr(TextClassification, "encode", encode)


def loss(task, raw, examples):
    if task.many:
        true = task.held([], examples)[1]
        return -np.log(np.where(true, task.probabilities(raw), 1 - task.probabilities(raw))).mean()
    rows = task.probabilities(raw)
    return -np.mean([np.log(row[task.labels.index(one.label)]) for row, one in zip(rows, examples, strict=True)])


@pytest.mark.parametrize("sharp", [0.2, 1.0, 5.0])
def test_temperature_makes_the_truth_likelier_and_changes_no_answer(plainly, sharp):
    made = classified(sharp=sharp)
    plain, tuned = (evaluate_model(Told(made.task, made.logits), made.examples, tune=tune) for tune in (False, True))
    assert plain.task.temperature == 1.0 and loss(tuned.task, made.logits, made.examples) < loss(
        plain.task, made.logits, made.examples
    )
    assert [one.label for one in tuned.predictions] == [one.label for one in plain.predictions] and tuned.scores == plain.scores
    nearby = [loss(msgspec.structs.replace(tuned.task, temperature=tuned.task.temperature * t), made.logits, made.examples)
              for t in (0.9, 1.1)]  # fmt: skip
    assert min(nearby) > loss(tuned.task, made.logits, made.examples)


def test_too_sure_a_model_is_cooled_by_as_much_as_it_was_sharpened(plainly):
    fitted = [classified(sharp=sharp) for sharp in (1.0, 4.0)]
    first, second = (evaluate_model(Told(one.task, one.logits), one.examples, tune=True).task.temperature for one in fitted)
    assert second == pytest.approx(4 * first, rel=1e-6)


@given(st.floats(0.01, 100), st.integers(0, 1000))
def test_no_temperature_changes_which_label_is_likeliest(temperature, seed):
    raw = np.random.default_rng(seed).normal(size=(20, 5)) * 3
    cool, warm = TextClassification(labels=tuple("abcde"), temperature=temperature), TextClassification(labels=tuple("abcde"))
    assert (cool.probabilities(raw).argmax(-1) == warm.probabilities(raw).argmax(-1)).all()
    assert (raw.argmax(-1) == warm.probabilities(raw).argmax(-1)).all()


def test_many_labels_have_a_temperature_and_the_threshold_that_goes_with_it(plainly):
    made = several()
    raw = made.logits * 6
    tuned = evaluate_model(Told(made.task, raw), made.examples, tune=True)
    assert tuned.task.temperature > 2 and loss(tuned.task, raw, made.examples) < loss(made.task, raw, made.examples)
    assert tuned.scores["f1_micro"] >= evaluate_model(Told(made.task, raw), made.examples).scores["f1_micro"]


def test_where_all_is_right_nothing_says_how_sure_is_too_sure(plainly):
    made = classified(margin=50.0)
    assert evaluate_model(Told(made.task, made.logits), made.examples, tune=True).task == made.task


def test_a_card_holds_scores_with_bounds_and_what_was_tuned(plainly):
    made = classified(sharp=3.0)
    card = evaluate_model(Told(made.task, made.logits), made.examples, tune=True).card
    assert card["temperature"] != 1.0 and card["threshold"] == 0.5
    told = card["metrics"]["accuracy"]
    assert told["low"] < told["value"] == made.scores["accuracy"] < told["high"]
    assert msgspec.json.decode(msgspec.json.encode(card)) == card  # plain values


def test_a_text_without_its_label_is_refused(plainly):
    with pytest.raises(UserError, match="has no label"):
        evaluate_model(Told(TextClassification(labels=("a", "b")), np.zeros((1, 2))), [ClassificationExample("t")])


def test_sentences_without_tags_are_not_judged(monkeypatch):
    made = tagged(20)
    mixed = [*made.examples, SimpleNamespace(tokens=("x",), tags=None)]
    monkeypatch.setattr(TokenClassification, "encode", lambda *_: None)
    monkeypatch.setattr(TokenClassification, "decode", lambda *_: [*made.predictions, made.predictions[0]])
    found = evaluate_model(Told(made.task, None), mixed)
    assert found.examples == made.examples and found.scores == made.scores and set(found.intervals) == set(made.intervals)


def test_a_question_without_answers_is_not_known_and_one_that_has_none_is():
    told = [is_labeled(QuestionAnswering(), SimpleNamespace(answers=answers)) for answers in (None, (), ("water",))]
    assert told == [False, True, True] and is_labeled(TextClassification(), ClassificationExample("t"))
