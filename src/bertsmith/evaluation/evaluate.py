"""Evaluation of a fine-tuned model on labeled examples: predictions, metrics, and their bootstrap confidence intervals."""

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
    """Predictions and scores of a model on labeled examples; intervals are computed on first access."""

    task: TaskConfig  # with the tuned temperature and threshold
    examples: list[Any]  # the labeled ones
    predictions: list[Any]
    scores: dict[str, float]
    logits: NDArray[np.float64] | None = None  # text classification: (examples, labels), before temperature and softmax

    @cached_property
    def metrics(self) -> dict[str, MetricResult]:
        return compute_metrics(self.task, self.predictions, self.examples)

    @cached_property
    def intervals(self) -> dict[str, ConfidenceInterval]:
        """95% confidence intervals of every score that is a function of examples (a threshold is not)."""
        return {name: result.compute_interval() for name, result in self.metrics.items()}

    @property
    def card(self) -> dict[str, Any]:
        """For card.json: {"metrics": {"accuracy": {"value", "confidence_interval"}, ...}, "threshold", "temperature"}."""
        metrics = {name: {"value": ci.value, "confidence_interval": [ci.low, ci.high]} for name, ci in self.intervals.items()}
        tuned = {name: getattr(self.task, name) for name in ("threshold", "temperature") if hasattr(self.task, name)}
        return {"metrics": metrics | {n: {"value": v} for n, v in self.scores.items() if n not in metrics}, **tuned}


def evaluate_model(predictor: Predictor, examples: Sequence[Any], tune: bool = False) -> Evaluation:
    """Predicts and scores `examples`; `tune` fits temperature and threshold on them first.

    Sentences without tags and questions without answers are skipped; a text without a label raises UserError.
    """
    task, all_examples = predictor.require_task(), list(examples)
    encoded = task.encode(all_examples, predictor.tokenizer, predictor.max_length)
    scores, logits = predictor.compute_outputs(encoded), None
    if isinstance(task, TextClassification):
        logits = average_windows(scores, encoded, len(all_examples))
        task = task.calibrate(logits, all_examples).tune_threshold(logits, all_examples) if tune else task
    if tune and isinstance(task, QuestionAnswering):
        task = task.tune_threshold(task.decode(scores, encoded, all_examples), all_examples)
    predictions: list[Any] = task.decode(scores, encoded, all_examples)
    metrics = task.compute_metrics(predictions, all_examples)
    labeled = [i for i, example in enumerate(all_examples) if is_labeled(task, example)]
    return Evaluation(task, [all_examples[i] for i in labeled], [predictions[i] for i in labeled], metrics, logits)


def is_labeled(task: TaskConfig, example: Any) -> bool:
    """Whether an example can be used for training and evaluation: a sentence needs tags, a question needs answers.

    True for all other tasks, which raise on an example without its label themselves.
    """
    field = {TokenClassification: "tags", QuestionAnswering: "answers"}.get(type(task))
    return field is None or getattr(example, field) is not None
