"""A task that defines only what every task must: the defaults of `Task` give it scores, mistakes, slices and answers."""

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
import pytest

from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.evaluation.calibration import compute_calibration
from bertsmith.evaluation.confusion import compute_confusion, compute_label_counts, compute_majority_baseline
from bertsmith.evaluation.errors import find_mistakes
from bertsmith.evaluation.evaluate import Evaluation, warn_of_unknown_labels
from bertsmith.evaluation.metric_names import resolve_best_metric
from bertsmith.evaluation.slices import compute_slices
from bertsmith.metrics.results import MetricResult
from bertsmith.metrics.scores import accuracy, mean_score
from bertsmith.objectives.supervised import Supervised
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import Task, TaskConfig
from bertsmith.tasks.base import Example, Prediction, RequestFields
from bertsmith.tasks.requests import answer_row, parse_requests
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB


@dataclass(frozen=True)
class ParityExample(Example):
    text: str
    label: int | None = None


@dataclass(frozen=True)
class ParityPrediction(Prediction):
    parity: int
    score: float


class Parity(Task, frozen=True, tag="parity"):
    """Whether a text has an odd number of words."""

    num_outputs: ClassVar[int] = 2
    metric_names: ClassVar[tuple[str, ...]] = ("accuracy",)

    def compute_metric_results(self, predictions, examples):
        return {"accuracy": MetricResult(accuracy, *self._values(predictions, examples))}

    def find_correct(self, predictions, examples):
        predicted, gold = self._values(predictions, examples)
        return predicted == gold

    def request_fields(self, names=()):
        return RequestFields(("text",), (), 'model("one two")')

    def parse_row(self, row):
        return ParityExample(row.get_text("text"), source=str(row.path), line=row.line)

    def _values(self, predictions, examples):
        return np.array([p.parity for p in predictions]), np.array([example.label for example in examples])


EXAMPLES = [
    ParityExample(text, label, source="dev.txt", line=i) for i, (text, label) in enumerate([("the", 1), ("the way", 0)])
]
PREDICTIONS = [ParityPrediction(1, 0.9), ParityPrediction(1, 0.7)]


@pytest.fixture
def evaluation():
    return Evaluation(Parity(), EXAMPLES, PREDICTIONS, Parity().compute_metrics(PREDICTIONS, EXAMPLES))


def test_new_task_has_scores_and_mistakes(evaluation):
    assert evaluation.scores == {"accuracy": 0.5} and resolve_best_metric(Parity()) == "accuracy"
    (mistake,) = find_mistakes(evaluation)
    assert (mistake.gold, mistake.prediction, mistake.confidence, mistake.location) == ("0", "1", 0.7, "dev.txt, line 1")
    assert [span.text for (span,) in mistake.texts] == ["the way"]
    assert compute_slices(evaluation, Tokenizer.from_vocab(VOCAB), 3)[0].metric == "accuracy"


def test_new_task_leaves_out_what_it_does_not_define(evaluation):
    for compute in (compute_confusion, compute_majority_baseline, compute_calibration):
        assert compute(evaluation) is None
    assert compute_label_counts(evaluation) == [] and Parity().majority_outputs(EXAMPLES) is None


def test_new_task_answers_requests_and_has_an_objective():
    task = Parity()
    (example,), is_single = parse_requests(task, "the way", None, {})
    assert is_single and answer_row(task, PREDICTIONS[0], example) == {"text": "the way", "parity": 1, "score": 0.9}
    with pytest.raises(UserError, match="question is not a field of this task"):
        parse_requests(task, "the way", None, {"question": "why"})
    assert isinstance(build_task_objective(task), Supervised)


def derive(task, results):
    """A task that derives and defines only what it measures."""
    namespace = {
        "metric_names": tuple(results),
        "primary_metric": "mine",
        "compute_metric_results": lambda self, predictions, examples: results,
        "__annotations__": {"metric_names": ClassVar[tuple[str, ...]], "primary_metric": ClassVar[str]},
    }
    return type(f"My{task.__name__}", (task,), namespace, frozen=True, tag="mine")()


@pytest.mark.parametrize("task", get_args(TaskConfig))
def test_derived_task_reports_the_metrics_it_defines(task):
    derived = derive(task, {"mine": MetricResult(mean_score, np.array([0.25, 0.75]), np.zeros(2))})
    assert derived.compute_metrics([], []) == {"mine": 0.5} and resolve_best_metric(derived) == "mine"
    assert Evaluation(derived, [], [], derived.compute_metrics([], [])).card["metrics"].keys() == {"mine"}


@dataclass(frozen=True)
class NamedExample(Example):
    label: str | tuple[str, ...] | None


class Named(Parity, frozen=True, tag="named"):
    """A task with fixed labels that does not define what an unknown one counts as."""

    labels: tuple[str, ...] = ("even", "odd")


@pytest.mark.parametrize("label", ["od", ("even", "od")])
def test_unknown_label_of_a_new_task_is_an_error_with_its_line(label):
    examples = [NamedExample(known, source="dev.txt", line=1) for known in ("even", ("odd", "even"), None)]
    warn_of_unknown_labels(Named(), examples, Console(quiet=True))
    examples.append(NamedExample(label, source="dev.txt", line=2))
    with pytest.raises(UserError, match=r"dev\.txt, line 2: 'od' is not a label of this task; did you mean 'odd'\?"):
        warn_of_unknown_labels(Named(), examples, Console(quiet=True))
