"""What each score of a task is computed from, a row an example, so that any choice of examples can be scored."""

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
from ..tasks.scorers.conlleval import are_span_tags, get_entities

BOOTSTRAP_SEED = 0  # of the resamples: the same examples and answers have the same interval, whoever asks
Z_SQUARED = 1.959964**2  # the square of the normal distribution's 97.5th percentile


@dataclass(frozen=True)
class MetricResult:
    """A score by its metric, from an array of answers and one of truths whose rows are examples."""

    metric: Metric
    predictions: Array
    references: Array
    lower_is_better: bool = False  # less is better

    @property
    def score(self) -> float:
        return float(self.metric(self.predictions, self.references))

    def subset(self, selection: NDArray[Any]) -> "MetricResult":
        """The same of some examples, by their numbers or by a mask."""
        return replace(self, predictions=self.predictions[selection], references=self.references[selection])

    def compute_interval(self, num_resamples: int = 1000) -> ConfidenceInterval:
        """With its bootstrap interval of 95%.

        Where all examples are right (or all wrong) every resample is too, which would claim certainty; Wilson's bound
        for as many examples is taken there. A single example has no interval.
        """
        found, count = (
            intervals.bootstrap_interval(self.metric, self.predictions, self.references, BOOTSTRAP_SEED, num_resamples),
            len(self.references),
        )
        if found.low < found.high:
            return found
        edges = {1.0: (count / (count + Z_SQUARED), 1.0), 0.0: (0.0, Z_SQUARED / (count + Z_SQUARED))}
        low, high = edges.get(found.value, (math.nan, math.nan)) if not self.lower_is_better else (math.nan, math.nan)
        return ConfidenceInterval(found.value, low, high)


def compute_metrics(task: TaskConfig, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    """The scores that `task.judge` gives, as far as they are of examples: not thresholds, nor the best one could have."""
    return _METRICS_BY_TASK[type(task)](task, predictions, examples)


def get_primary_metric(task: TaskConfig) -> str:
    """The name of the score by which models of this task are told apart."""
    if isinstance(task, TokenClassification):
        return "f1" if are_span_tags(task.labels) else "accuracy"
    if isinstance(task, TextClassification) and task.many:
        return "f1_micro"
    return {QuestionAnswering: "f1", TextRegression: "pearson", TextSimilarity: "spearman", Seq2Seq: "bleu"}.get(
        type(task), "accuracy"
    )


def resolve_best_metric(task: TaskConfig, requested: str | None = None) -> str:
    """The name of the score by which one run of a task is chosen before another: the headline, if no other is asked for."""
    if requested and requested not in list_metrics(task):
        raise UserError(f"best={requested} is not a score of this task, which has {', '.join(list_metrics(task))}")
    return requested or get_primary_metric(task)


def list_metrics(task: TaskConfig) -> list[str]:
    """The scores that models of a task can be compared by, known before there is any answer; its labels must be."""
    if isinstance(task, TextClassification):
        one = ["matthews"] * (not task.many) + ["f1"] * (task.positive is not None)
        return ["accuracy", "f1_macro", "f1_micro", *one]
    if isinstance(task, TokenClassification):
        spans = (
            ["f1", "precision", "recall", *(f"f1.{kind}" for kind in task.entity_types)] if are_span_tags(task.labels) else []
        )
        return [*spans, "accuracy"]
    if isinstance(task, QuestionAnswering):
        sides = [f"{side}_{name}" for side in ("has_answer", "no_answer") for name in ("exact", "f1")]
        return ["exact", "f1", *(sides if task.no_answer else ())]
    if isinstance(task, Seq2Seq):
        return ["bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "length"]
    return ["accuracy"] if isinstance(task, MultipleChoice) else ["pearson", "spearman"]


def choose_slice_metric(task: TaskConfig, metrics: dict[str, MetricResult]) -> tuple[str, MetricResult]:
    """The score, of those found, by which parts of the examples are compared, and its name.

    For numbers that is how far off they are: within a part where truths are alike, a correlation says little.
    """
    name = get_primary_metric(task)
    if isinstance(task, TextRegression):
        apart = np.abs(metrics[name].predictions - metrics[name].references)
        return "mean error", MetricResult(scores.mean_score, apart, np.zeros(len(apart)), lower_is_better=True)
    return name, metrics[name]


def find_correct(task: TaskConfig, predictions: Sequence[Any], examples: Sequence[Any]) -> NDArray[np.bool_] | None:
    """Which examples are answered without a fault; None where answers are numbers, which are near or far."""
    pairs = list(zip(predictions, examples, strict=True))
    if isinstance(task, TextClassification) and task.many:
        given, true = task.label_matrices(predictions, examples)
        return (given == true).all(-1)
    if isinstance(task, QuestionAnswering):
        return task.per_example_scores(predictions, examples)[0] == 1
    if isinstance(task, Seq2Seq):
        return task.per_example_scores(predictions, examples)["exact"] == 1
    tests: dict[type, Callable[[Any, Any], bool]] = {
        TextClassification: lambda said, one: said.label == one.label,
        MultipleChoice: lambda said, one: said.choice == one.label,
        TokenClassification: lambda said, one: said.tags == one.tags,
    }
    return np.array([tests[type(task)](*pair) for pair in pairs], bool) if type(task) in tests else None


def _classify_metrics(task: TextClassification, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    if task.many:
        sides = task.label_matrices(predictions, examples)
        many = {"accuracy": scores.exact, "f1_macro": scores.f1_macro_many, "f1_micro": scores.f1_micro_many}
        return {name: MetricResult(metric, *sides) for name, metric in many.items()}
    place = {label: number for number, label in enumerate(task.labels)}
    said, true = np.array([place[one.label] for one in predictions]), np.array([place[one.label] for one in examples])
    found = {name: scores.METRICS[name] for name in ("accuracy", "f1_macro", "f1_micro", "matthews")}
    if task.positive:
        found["f1"] = partial(scores.f1, positive=place[task.positive])
    return {name: MetricResult(metric, said, true) for name, metric in found.items()}


def _regression_metrics(
    task: TextRegression | TextSimilarity,
    predictions: Sequence[Any],
    examples: Sequence[Any],
    names: tuple[str, str],
    prediction_field: str,
    reference_field: str,
) -> dict[str, MetricResult]:
    said, true = (
        np.array([getattr(o, n) for o in some]) for some, n in ((predictions, prediction_field), (examples, reference_field))
    )
    return {name: MetricResult(scores.METRICS[name], said, true) for name in names}


def _choose_metrics(task: MultipleChoice, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    said, true = np.array([one.choice for one in predictions]), np.array([one.label for one in examples])
    return {"accuracy": MetricResult(scores.accuracy, said, true)}


def _answer_metrics(task: QuestionAnswering, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    exact, f1 = task.per_example_scores(predictions, examples)
    found = {
        name: MetricResult(scores.mean_score, values, np.zeros(len(values))) for name, values in (("exact", exact), ("f1", f1))
    }
    if task.no_answer:
        there = np.array([bool(one.answers) for one in examples])
        for kind, chosen in (("has_answer", there), ("no_answer", ~there)):
            if chosen.any():
                found |= {
                    f"{kind}_exact": _ratio_metric(exact * chosen, chosen),
                    f"{kind}_f1": _ratio_metric(f1 * chosen, chosen),
                }
    return found


def _generate_metrics(task: Seq2Seq, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    """But for chrF, whose counts sacreBLEU does not tell."""
    counts = scores.bleu_counts(*task.comparison_texts(predictions, examples), task.words)
    zeros = np.zeros(len(counts))
    means = {
        name: MetricResult(scores.mean_score, values, zeros)
        for name, values in task.per_example_scores(predictions, examples).items()
    }
    return {"bleu": MetricResult(scores.bleu_from_counts, counts, zeros), **means}


def _tag_metrics(task: TokenClassification, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
    """Entities are counted in each sentence once: a thousand resamples then only add."""
    pairs = [(said.tags, one.tags) for said, one in zip(predictions, examples, strict=True)]
    hits = np.array([sum(a == b for a, b in zip(*pair, strict=True)) for pair in pairs])
    accuracy = _ratio_metric(hits, np.array([len(one.tokens) for one in examples]))
    if not are_span_tags(sorted({*chain.from_iterable(gold for _, gold in pairs), *task.labels})):
        return {"accuracy": accuracy}
    spans = [(set(get_entities(said)), set(get_entities(gold))) for said, gold in pairs]
    kinds = sorted({entity.type for pair in spans for entity in chain(*pair)} | set(task.entity_types))
    all_, *each = (_count_entities(spans, kind) for kind in (None, *kinds))
    found = {"f1": _f1_metric(*all_), "precision": _ratio_metric(all_[0], all_[1]), "recall": _ratio_metric(all_[0], all_[2])}
    found |= {f"f1.{kind}": _f1_metric(*counts) for kind, counts in zip(kinds, each, strict=True) if kind}
    return {**found, "accuracy": accuracy}


def _count_entities(spans: Sequence[tuple[set[Any], set[Any]]], entity_type: str | None) -> tuple[Array, Array, Array]:
    """Right, found and there in each sentence, of one type of entity or of all."""
    kept = [tuple({e for e in side if entity_type in (None, e.type)} for side in pair) for pair in spans]
    table = np.array([(len(said & gold), len(said), len(gold)) for said, gold in kept], np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _f1_metric(num_correct: Array, num_predicted: Array, num_gold: Array) -> MetricResult:
    return MetricResult(scores.f1_from_counts, np.stack([num_correct, num_predicted], -1), np.stack([num_gold, num_gold], -1))


def _ratio_metric(numerator: Array, denominator: Array) -> MetricResult:
    return MetricResult(scores.ratio_of_sums, np.stack([numerator, denominator], -1), np.zeros((len(numerator), 2)))


_METRICS_BY_TASK: dict[type, Callable[..., dict[str, MetricResult]]] = {
    TextClassification: _classify_metrics,
    TextRegression: partial(
        _regression_metrics, names=("pearson", "spearman"), prediction_field="value", reference_field="label"
    ),
    TextSimilarity: partial(
        _regression_metrics, names=("spearman", "pearson"), prediction_field="score", reference_field="score"
    ),
    TokenClassification: _tag_metrics,
    QuestionAnswering: _answer_metrics,
    MultipleChoice: _choose_metrics,
    Seq2Seq: _generate_metrics,
}
