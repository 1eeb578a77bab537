"""A model held against examples whose answers are known: what it says, its scores, and how sure those are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inference.predictor import Predictor
from ..metrics.intervals import ConfidenceInterval
from ..tasks import QuestionAnswering, TaskConfig, TextClassification, TokenClassification
from ..tasks.base import average_windows
from .measures import MetricResult, compute_metrics


@dataclass(frozen=True)
class Evaluation:
    """What came of it; the intervals are computed when somebody asks."""

    task: TaskConfig  # with what was tuned
    examples: list[Any]  # those whose answers are known
    predictions: list[Any]
    scores: dict[str, float]
    logits: NDArray[np.float64] | None = None  # classify: (examples, labels), before temperature and softmax

    @cached_property
    def metrics(self) -> dict[str, MetricResult]:
        return compute_metrics(self.task, self.predictions, self.examples)

    @cached_property
    def intervals(self) -> dict[str, ConfidenceInterval]:
        """Of every score that is of examples (a threshold is not), with 95% bounds."""
        return {name: measure.compute_interval() for name, measure in self.metrics.items()}

    @property
    def card(self) -> dict[str, Any]:
        """What a folder remembers: {"metrics": {"accuracy": {"value", "low", "high"}, ...}, "threshold", "temperature"}."""
        found = {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in self.intervals.items()}
        tuned = {name: getattr(self.task, name) for name in ("threshold", "temperature") if hasattr(self.task, name)}
        return {"metrics": found | {n: {"value": v} for n, v in self.scores.items() if n not in found}, **tuned}


def evaluate_model(predictor: Predictor, examples: Sequence[Any], tune: bool = False) -> Evaluation:
    """The model's answers to these examples and their scores; `tune` fits temperature and threshold to them first.

    Sentences without tags and questions without answers are not judged; a text without its label is refused.
    """
    task, every = predictor.require_task(), list(examples)
    encoded = task.encode(every, predictor.tokenizer, predictor.length)
    scores, raw = predictor.scores(encoded), None
    if isinstance(task, TextClassification):
        raw = average_windows(scores, encoded, len(every))
        task = task.calibrate(raw, every).tune_threshold(raw, every) if tune else task
    if tune and isinstance(task, QuestionAnswering):
        task = task.tune_threshold(task.decode(scores, encoded, every), every)
    answers: list[Any] = task.decode(scores, encoded, every)
    found = task.compute_metrics(answers, every)
    kept = [number for number, one in enumerate(every) if is_labeled(task, one)]
    return Evaluation(task, [every[i] for i in kept], [answers[i] for i in kept], found, raw)


def is_labeled(task: TaskConfig, example: Any) -> bool:
    """Whether it may be learnt from and judged by: a sentence without tags and a question without answers may not.

    Of other tasks every example may: one without its label is refused by the task itself.
    """
    field = {TokenClassification: "tags", QuestionAnswering: "answers"}.get(type(task))
    return field is None or getattr(example, field) is not None
