"""Metrics of each task as functions of per-example arrays, so that any subset or resample of examples can be scored."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..metrics import intervals, scores
from ..metrics.intervals import ConfidenceInterval
from ..metrics.scores import Array, Metric
from ..tasks import (
    MultipleChoice,
    QuestionAnswering,
    Seq2Seq,
    TaskConfig,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from ..tasks.base import TableByTask
from ..tasks.scorers.conlleval import are_span_tags, get_entities

BOOTSTRAP_SEED = 0  # of the resamples: the same examples and predictions always give the same interval
Z_SQUARED = 1.959964**2  # the square of the normal distribution's 97.5th percentile


@dataclass(frozen=True)
class MetricResult:
    """metric(predictions, references); the rows of both arrays are examples."""

    metric: Metric
    predictions: Array
    references: Array
    lower_is_better: bool = False

    @property
    def score(self) -> float:
        return float(self.metric(self.predictions, self.references))

    def subset(self, selection: NDArray[Any]) -> "MetricResult":
        """The same metric on some examples, given by indices or by a boolean mask."""
        return replace(self, predictions=self.predictions[selection], references=self.references[selection])

    def compute_interval(self, num_resamples: int = 1000) -> ConfidenceInterval:
        """The score with its 95% bootstrap percentile interval.

        Where all examples are correct (or all wrong), so is every resample, and the interval would have no width; the
        Wilson score bound for that many examples is used instead. A single example has no interval.
        """
        count = len(self.references)
        interval = intervals.bootstrap_interval(self.metric, self.predictions, self.references, BOOTSTRAP_SEED, num_resamples)
        if interval.low < interval.high:
            return interval
        wilson = {1.0: (count / (count + Z_SQUARED), 1.0), 0.0: (0.0, Z_SQUARED / (count + Z_SQUARED))}
        low, high = wilson.get(interval.value, (math.nan, math.nan)) if not self.lower_is_better else (math.nan, math.nan)
        return ConfidenceInterval(interval.value, low, high)


def compute_metrics(task: TaskConfig, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    """The metrics of `task.compute_metrics` that are computed from examples, so not thresholds or best possible scores."""
    return _METRICS_BY_TASK[type(task)](task, predictions, examples)


def get_primary_metric(task: TaskConfig) -> str:
    """The name of the main metric of the task."""
    if isinstance(task, TokenClassification):
        return "f1" if are_span_tags(task.labels) else "accuracy"
    if isinstance(task, TextClassification) and task.multi_label:
        return "f1_micro"
    return _PRIMARY_METRICS[type(task)]


def resolve_best_metric(task: TaskConfig, requested: str | None = None) -> str:
    """The name of the metric that selects the best checkpoint or seed: `requested`, or the primary metric."""
    if requested and requested not in list_metrics(task):
        raise UserError(
            f"metric_for_best_model={requested} is not a metric of this task; choose one of {', '.join(list_metrics(task))}"
        )
    return requested or get_primary_metric(task)


def list_metrics(task: TaskConfig) -> list[str]:
    """Names of the metrics of a task, known before any prediction; `task.labels` must be set."""
    if isinstance(task, TextClassification):
        single_label = ["matthews"] * (not task.multi_label) + ["f1"] * (task.positive is not None)
        return ["accuracy", "f1_macro", "f1_micro", *single_label]
    if isinstance(task, TokenClassification):
        entity_metrics = (
            ["f1", "precision", "recall", *(f"f1.{entity_type}" for entity_type in task.entity_types)]
            if are_span_tags(task.labels)
            else []
        )
        return [*entity_metrics, "accuracy"]
    if isinstance(task, QuestionAnswering):
        subsets = [f"{side}_{name}" for side in ("has_answer", "no_answer") for name in ("exact", "f1")]
        return ["exact", "f1", *(subsets if task.no_answer else ())]
    if isinstance(task, Seq2Seq):
        return ["bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "same_length"]
    return ["accuracy"] if isinstance(task, MultipleChoice) else ["pearson", "spearman"]


def choose_slice_metric(task: TaskConfig, metrics: dict[str, MetricResult]) -> tuple[str, MetricResult]:
    """(name, result) of the metric by which slices of the examples are compared.

    For regression it is the mean absolute error, since correlation is not informative within a narrow range of labels.
    """
    name = get_primary_metric(task)
    if isinstance(task, TextRegression):
        errors = np.abs(metrics[name].predictions - metrics[name].references)
        return "mean_absolute_error", MetricResult(scores.mean_score, errors, np.zeros(len(errors)), lower_is_better=True)
    return name, metrics[name]


def find_correct(task: TaskConfig, predictions: Sequence[Any], examples: Sequence[Any]) -> NDArray[np.bool_] | None:
    """(examples,) bool, predictions that are entirely correct; None for regression and similarity."""
    pairs = list(zip(predictions, examples, strict=True))
    if isinstance(task, TextClassification) and task.multi_label:
        predicted, gold = task.label_matrices(predictions, examples)
        return (predicted == gold).all(-1)
    if isinstance(task, QuestionAnswering):
        return task.per_example_scores(predictions, examples)[0] == 1
    if isinstance(task, Seq2Seq):
        return task.per_example_scores(predictions, examples)["exact"] == 1
    is_correct: dict[type, Callable[[Any, Any], bool]] = {
        TextClassification: lambda prediction, example: prediction.label == example.label,
        MultipleChoice: lambda prediction, example: prediction.choice == example.label,
        TokenClassification: lambda prediction, example: prediction.tags == example.tags,
    }
    return np.array([is_correct[type(task)](*pair) for pair in pairs], bool) if type(task) in is_correct else None


def _classify_metrics(task: TextClassification, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    if task.multi_label:
        matrices = task.label_matrices(predictions, examples)
        multi_label = {
            "accuracy": scores.subset_accuracy,
            "f1_macro": scores.f1_macro_multi_label,
            "f1_micro": scores.f1_micro_multi_label,
        }
        return {name: MetricResult(metric, *matrices) for name, metric in multi_label.items()}
    label2id = {label: i for i, label in enumerate(task.labels)}
    predicted_ids = np.array([label2id[prediction.label] for prediction in predictions])
    gold_ids = np.array([label2id[example.label] for example in examples])
    metrics = {name: scores.METRICS[name] for name in ("accuracy", "f1_macro", "f1_micro", "matthews")}
    if task.positive:
        metrics["f1"] = partial(scores.f1, positive=label2id[task.positive])
    return {name: MetricResult(metric, predicted_ids, gold_ids) for name, metric in metrics.items()}


def _regression_metrics(
    task: TextRegression | TextSimilarity,
    predictions: Sequence[Any],
    examples: Sequence[Any],
    names: tuple[str, str],
    prediction_field: str,
    reference_field: str,
) -> dict[str, MetricResult]:
    predicted = np.array([getattr(prediction, prediction_field) for prediction in predictions])
    gold = np.array([getattr(example, reference_field) for example in examples])
    return {name: MetricResult(scores.METRICS[name], predicted, gold) for name in names}


def _choose_metrics(task: MultipleChoice, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    predicted = np.array([prediction.choice for prediction in predictions])
    gold = np.array([example.label for example in examples])
    return {"accuracy": MetricResult(scores.accuracy, predicted, gold)}


def _answer_metrics(task: QuestionAnswering, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    exact, f1 = task.per_example_scores(predictions, examples)
    results = {
        name: MetricResult(scores.mean_score, values, np.zeros(len(values))) for name, values in (("exact", exact), ("f1", f1))
    }
    if task.no_answer:
        has_answer = np.array([bool(example.answers) for example in examples])
        for kind, mask in (("has_answer", has_answer), ("no_answer", ~has_answer)):
            if mask.any():
                results |= {
                    f"{kind}_exact": _ratio_metric(exact * mask, mask),
                    f"{kind}_f1": _ratio_metric(f1 * mask, mask),
                }
    return results


def _generate_metrics(task: Seq2Seq, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    """All metrics but chrF, whose per-sentence statistics sacreBLEU does not expose."""
    counts = scores.bleu_counts(*task.comparison_texts(predictions, examples), task.bleu_tokenizer)
    zeros = np.zeros(len(counts))
    means = {
        name: MetricResult(scores.mean_score, values, zeros)
        for name, values in task.per_example_scores(predictions, examples).items()
    }
    return {"bleu": MetricResult(scores.bleu_from_counts, counts, zeros), **means}


def _tag_metrics(task: TokenClassification, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    """Entities are counted per sentence once; a bootstrap resample then only sums counts."""
    pairs = [(prediction.tags, example.tags) for prediction, example in zip(predictions, examples, strict=True)]
    num_correct = np.array([sum(a == b for a, b in zip(*pair, strict=True)) for pair in pairs])
    accuracy = _ratio_metric(num_correct, np.array([len(example.tokens) for example in examples]))
    if not are_span_tags(sorted({*chain.from_iterable(gold for _, gold in pairs), *task.labels})):
        return {"accuracy": accuracy}
    spans = [(set(get_entities(predicted)), set(get_entities(gold))) for predicted, gold in pairs]
    types = sorted({entity.type for pair in spans for entity in chain(*pair)} | set(task.entity_types))
    total, *by_type = (_count_entities(spans, entity_type) for entity_type in (None, *types))
    correct, predicted_count, gold_count = total
    results = {
        "f1": _f1_metric(*total),
        "precision": _ratio_metric(correct, predicted_count),
        "recall": _ratio_metric(correct, gold_count),
    }
    results |= {f"f1.{name}": _f1_metric(*counts) for name, counts in zip(types, by_type, strict=True) if name}
    return {**results, "accuracy": accuracy}


def _count_entities(spans: Sequence[tuple[set[Any], set[Any]]], entity_type: str | None) -> tuple[Array, Array, Array]:
    """(correct, predicted, gold) counts, each (sentences,), of one entity type or of all (None)."""
    of_type = [tuple({e for e in side if entity_type in (None, e.type)} for side in pair) for pair in spans]
    counts = [(len(predicted & gold), len(predicted), len(gold)) for predicted, gold in of_type]
    table = np.array(counts, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _f1_metric(num_correct: Array, num_predicted: Array, num_gold: Array) -> MetricResult:
    return MetricResult(scores.f1_from_counts, np.stack([num_correct, num_predicted], -1), np.stack([num_gold, num_gold], -1))


def _ratio_metric(numerator: Array, denominator: Array) -> MetricResult:
    return MetricResult(scores.ratio_of_sums, np.stack([numerator, denominator], -1), np.zeros((len(numerator), 2)))


_PRIMARY_METRICS = TableByTask[str](
    {
        TextClassification: "accuracy",
        TextRegression: "pearson",
        MultipleChoice: "accuracy",
        QuestionAnswering: "f1",
        TextSimilarity: "spearman",
        Seq2Seq: "bleu",
    }
)
_METRICS_BY_TASK = TableByTask[Callable[..., dict[str, MetricResult]]](
    {
        TextClassification: _classify_metrics,
        TextRegression: partial(
            _regression_metrics, names=("pearson", "spearman"), prediction_field="score", reference_field="label"
        ),
        TextSimilarity: partial(
            _regression_metrics, names=("spearman", "pearson"), prediction_field="score", reference_field="score"
        ),
        TokenClassification: _tag_metrics,
        QuestionAnswering: _answer_metrics,
        MultipleChoice: _choose_metrics,
        Seq2Seq: _generate_metrics,
    }
)
