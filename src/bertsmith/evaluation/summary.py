"""Everything computed about one evaluation, gathered once for report.html and scores.json."""

from dataclasses import dataclass
from typing import Any

from ..config import to_dict
from ..inference.predictor import Predictor
from ..metrics.results import MetricResult
from ..tasks.mistakes import Mistake
from .calibration import Calibration, compute_calibration
from .confusion import ConfusionMatrix, LabelCounts, compute_confusion, compute_label_counts, compute_majority_baseline
from .errors import find_mistakes
from .evaluate import Evaluation
from .significance import Comparison, compare_evaluations
from .slices import Slicing, compute_slices


@dataclass(frozen=True)
class EvaluationSummary:
    """An evaluation with its slices, label counts, calibration, errors, and the comparison with another model."""

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
        return self.evaluation.task.primary_metric


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
        evaluation.task.slice_metric(evaluation.metrics),
        compute_label_counts(evaluation),
        compute_confusion(evaluation),
        compute_majority_baseline(evaluation),
        compute_calibration(evaluation),
        find_mistakes(evaluation),
        evaluation.task.count_entity_mistakes(evaluation.predictions, evaluation.examples),
        other_model,
        compare_evaluations(evaluation, other_evaluation) if other_evaluation else None,
    )


def build_scores(summary: EvaluationSummary) -> dict[str, Any]:
    """The result of `evaluate`: scores by metric, 95% confidence intervals as [low, high], and the comparison if any."""
    evaluation = summary.evaluation
    result: dict[str, Any] = {
        "model": summary.model,
        "data": summary.data,
        "task": summary.task_kind,
        "num_examples": len(evaluation.examples),
    }
    intervals = {name: [interval.low, interval.high] for name, interval in evaluation.intervals.items()}
    result |= {"scores": evaluation.scores, "confidence_intervals": intervals}
    if evaluation.unknown_labels:
        result["unknown_labels"] = evaluation.unknown_labels
    if summary.comparison:
        result["comparison"] = {"other_model": summary.other_model} | _comparison_to_dict(summary.comparison)
    return result


def build_details(summary: EvaluationSummary, max_mistakes: int) -> dict[str, Any]:
    """The contents of scores.json: `build_scores` and all else that the report shows, with the `max_mistakes` worst errors."""
    entity_errors = [{"kind": kind, "entity_type": types, "count": count} for kind, types, count in summary.entity_mistakes]
    matrix, baseline = summary.confusion, summary.majority_baseline
    return build_scores(summary) | {
        "majority_baseline": {"label": baseline[0], "accuracy": baseline[1]} if baseline else None,
        "slices": [_slicing_to_dict(slicing) for slicing in summary.slicings],
        "classification_report": {row.label: _label_scores(row) for row in summary.label_counts},
        "confusion_matrix": {"labels": matrix.labels, "matrix": matrix.table} if matrix else None,
        "calibration": to_dict(summary.calibration),
        "entity_errors": entity_errors,
        "num_errors": len(summary.mistakes),
        "worst_errors": to_dict(summary.mistakes[:max_mistakes]),
    }


def _comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    differences = {
        row.name: {
            "score": row.score,
            "other_score": row.other_score,
            "difference": row.difference.value,
            "confidence_interval": [row.difference.low, row.difference.high],
            "p_value": row.p_value,
            "mcnemar_p_value": row.mcnemar_p_value,
        }
        for row in comparison.differences
    }
    names = ("both_correct", "only_this_correct", "only_other_correct", "neither_correct")
    return {"differences": differences, **{name: getattr(comparison, name) for name in names}}


def _slicing_to_dict(slicing: Slicing) -> dict[str, Any]:
    slices = [
        {
            "name": part.name,
            "num_examples": part.count,
            "score": part.score.value,
            "confidence_interval": [part.score.low, part.score.high],
        }
        for part in slicing.slices
    ]
    return {"by": slicing.by, "metric": slicing.metric, "slices": slices}


def _label_scores(row: LabelCounts) -> dict[str, float]:
    counts = row.counts
    return {
        "precision": counts.precision,
        "recall": counts.recall,
        "f1": counts.f1,
        "support": counts.num_gold,
        "num_predicted": counts.num_predicted,
        "num_correct": counts.num_correct,
    }
