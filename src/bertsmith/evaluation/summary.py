"""Everything computed about one evaluation, gathered once for report.html and scores.json."""

from dataclasses import dataclass
from typing import Any

from ..config import to_dict
from ..inference.predictor import Predictor
from ..tasks import TokenClassification
from .calibration import Calibration, compute_calibration
from .confusion import ConfusionMatrix, LabelCounts, compute_confusion, compute_label_counts, compute_majority_baseline
from .errors import Mistake, count_entity_mistakes, find_mistakes
from .evaluate import Evaluation
from .measures import MetricResult, choose_slice_metric, get_primary_metric
from .significance import Comparison, compare_evaluations
from .slices import Slicing, compute_slices


@dataclass(frozen=True)
class EvaluationSummary:
    """An evaluation with its slices, label counts, calibration, mistakes, and the comparison with another model."""

    model: str
    data: str
    evaluation: Evaluation
    slicings: list[Slicing]
    slice_metric: tuple[str, MetricResult]  # the metric that slices are compared by
    label_counts: list[LabelCounts]
    confusion: ConfusionMatrix | None
    majority_baseline: tuple[str, float] | None
    calibration: Calibration | None
    mistakes: list[Mistake]  # all of them, worst first
    entity_mistakes: list[tuple[str, str, int]]  # (kind, types, count), most frequent first
    other_model: str | None = None
    comparison: Comparison | None = None

    @property
    def task_kind(self) -> str:
        return str(self.evaluation.task.__struct_config__.tag)

    @property
    def primary_metric(self) -> str:
        """The name of the headline metric of the task."""
        return get_primary_metric(self.evaluation.task)


def summarize(
    predictor: Predictor,
    evaluation: Evaluation,
    model: str,
    data: str,
    other_model: str | None = None,
    other_evaluation: Evaluation | None = None,
) -> EvaluationSummary:
    """`other_evaluation` is that of the model `other_model` on the same examples, for the comparison."""
    return EvaluationSummary(
        model,
        data,
        evaluation,
        compute_slices(evaluation, predictor.tokenizer, predictor.max_length),
        choose_slice_metric(evaluation.task, evaluation.metrics),
        compute_label_counts(evaluation),
        compute_confusion(evaluation),
        compute_majority_baseline(evaluation),
        compute_calibration(evaluation),
        find_mistakes(evaluation),
        count_entity_mistakes(evaluation.predictions, evaluation.examples)
        if isinstance(evaluation.task, TokenClassification)
        else [],
        other_model,
        compare_evaluations(evaluation, other_evaluation) if other_evaluation else None,
    )


def build_scores(summary: EvaluationSummary) -> dict[str, Any]:
    """The machine-readable result: `scores` by name, `intervals` as [low, high], and the comparison where there is one."""
    evaluation = summary.evaluation
    result: dict[str, Any] = {
        "model": summary.model,
        "data": summary.data,
        "task": summary.task_kind,
        "examples": len(evaluation.examples),
    }
    intervals = {name: [interval.low, interval.high] for name, interval in evaluation.intervals.items()}
    result |= {"scores": evaluation.scores, "intervals": intervals}
    if summary.comparison:
        result["against"] = {"model": summary.other_model} | {
            name: value for name, value in to_dict(summary.comparison).items() if name not in ("lost", "won")
        }
    return result


def build_details(summary: EvaluationSummary, max_mistakes: int) -> dict[str, Any]:
    """Everything the report shows, as JSON-serializable values, with the `max_mistakes` worst mistakes."""
    labels = [{"label": row.label, "right": row.counts.num_correct, "found": row.counts.num_predicted,
               "there": row.counts.num_gold,
               "precision": row.counts.precision, "recall": row.counts.recall, "f1": row.counts.f1}
              for row in summary.label_counts]  # fmt: skip
    entity_mistakes = [{"kind": kind, "types": types, "times": count} for kind, types, count in summary.entity_mistakes]
    return build_scores(summary) | {
        "slices": to_dict(summary.slicings),
        "labels": labels,
        "confusion": to_dict(summary.confusion),
        "calibration": to_dict(summary.calibration),
        "faults": entity_mistakes,
        "mistakes": len(summary.mistakes),
        "worst": to_dict(summary.mistakes[:max_mistakes]),
    }
