"""Evaluation of a fine-tuned model on labeled examples: predictions, metrics, and their bootstrap confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..console import Console
from ..inference.predictor import Predictor
from ..metrics.intervals import ConfidenceInterval
from ..metrics.results import MetricResult
from ..tasks import Task

MAX_UNKNOWN_LABELS = 10  # reported one by one


@dataclass(frozen=True)
class Evaluation:
    """Predictions and scores of a model on labeled examples; intervals are computed on first access."""

    task: Task  # with the tuned temperature and threshold
    examples: list[Any]  # the labeled ones
    predictions: list[Any]
    scores: dict[str, float]
    logits: NDArray[np.float64] | None = None  # (examples, outputs) before temperature scaling, if the task has it

    @cached_property
    def metrics(self) -> dict[str, MetricResult]:
        return self.task.compute_metric_results(self.predictions, self.examples)

    @cached_property
    def intervals(self) -> dict[str, ConfidenceInterval]:
        """95% confidence intervals of every score that is a function of examples (a threshold is not)."""
        return {name: result.compute_interval() for name, result in self.metrics.items()}

    @property
    def unknown_labels(self) -> dict[str, int]:
        """Number of occurrences of each gold label that the task lacks; each counts as wrong."""
        return {label: len(examples) for label, examples in self.task.find_unknown_labels(self.examples).items()}

    @property
    def card(self) -> dict[str, Any]:
        """For card.json: {"metrics": {"accuracy": {"value", "confidence_interval"}, ...}, "threshold", "temperature"}."""
        metrics = {name: {"value": ci.value, "confidence_interval": [ci.low, ci.high]} for name, ci in self.intervals.items()}
        tuned = {name: getattr(self.task, name) for name in ("threshold", "temperature") if hasattr(self.task, name)}
        return {"metrics": metrics | {n: {"value": v} for n, v in self.scores.items() if n not in metrics}, **tuned}


def warn_of_unknown_labels(task: Task, examples: Sequence[Any], console: Console) -> None:
    """A line for each label that the task lacks: where it is first, how often, and a label with a similar spelling."""
    for label, found in list((unknown := task.find_unknown_labels(examples)).items())[:MAX_UNKNOWN_LABELS]:
        matches = get_close_matches(label, getattr(task, "labels", ()), n=1)
        hint = f"; did you mean {matches[0]!r}?" if matches else ""
        console.warn(f"{found[0].location}: {label!r} ({len(found):,} in the file) is not a label of this task, so that it "
                     f"counts as wrong{hint}")  # fmt: skip
    if (num_more := len(unknown) - MAX_UNKNOWN_LABELS) > 0:
        console.warn(f"{num_more:,} more labels are not labels of this task, and count as wrong")


def evaluate_model(predictor: Predictor, examples: Sequence[Any], tune: bool = False) -> Evaluation:
    """Predicts and scores `examples`; `tune` fits temperature and threshold on them first.

    Sentences without tags and questions without answers are skipped; a text without a label raises UserError.
    """
    task: Task = predictor.require_task()
    all_examples = list(examples)
    encoded = task.encode(all_examples, predictor.tokenizer, predictor.max_length)
    outputs = predictor.compute_outputs(encoded)
    task = task.tune(outputs, encoded, all_examples) if tune else task
    predictions, logits = task.decode(outputs, encoded, all_examples), task.example_logits(outputs, encoded, len(all_examples))
    metrics = task.compute_metrics(predictions, all_examples)
    labeled = [i for i, example in enumerate(all_examples) if task.is_labeled(example)]
    return Evaluation(task, [all_examples[i] for i in labeled], [predictions[i] for i in labeled], metrics, logits)
