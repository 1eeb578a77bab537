"""All there is to say of a model on a file, gathered once for the report and for scores.json."""

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
    model: str
    data: str
    evaluation: Evaluation
    slicings: list[Slicing]
    slice_metric: tuple[str, MetricResult]  # the score that slices are compared by
    label_counts: list[LabelCounts]
    confusion: ConfusionMatrix | None
    majority_baseline: tuple[str, float] | None
    calibration: Calibration | None
    mistakes: list[Mistake]  # all, worst first
    entity_mistakes: list[tuple[str, str, int]]  # of entities
    other_model: str | None = None
    comparison: Comparison | None = None

    @property
    def task_kind(self) -> str:
        return str(self.evaluation.task.__struct_config__.tag)

    @property
    def primary_metric(self) -> str:
        """The score to look at first."""
        return get_primary_metric(self.evaluation.task)


def summarize(
    predictor: Predictor,
    evaluation: Evaluation,
    model: str,
    data: str,
    other_model: str | None = None,
    other_evaluation: Evaluation | None = None,
) -> EvaluationSummary:
    """`other` is what the model named `against` made of the same examples."""
    return EvaluationSummary(
        model,
        data,
        evaluation,
        compute_slices(evaluation, predictor.tokenizer, predictor.length),
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
    """What a script wants: `scores` by name, `intervals` as [low, high], and the comparison where there is one."""
    judged = summary.evaluation
    told: dict[str, Any] = {
        "model": summary.model,
        "data": summary.data,
        "task": summary.task_kind,
        "examples": len(judged.examples),
    }
    told |= {"scores": judged.scores, "intervals": {name: [one.low, one.high] for name, one in judged.intervals.items()}}
    if summary.comparison:
        told["against"] = {"model": summary.other_model} | {
            name: value for name, value in to_dict(summary.comparison).items() if name not in ("lost", "won")
        }
    return told


def build_details(summary: EvaluationSummary, max_mistakes: int) -> dict[str, Any]:
    """All the report shows, as plain values; of the mistakes, the `most` worst."""
    labels = [{"label": one.label, "right": one.counts.right, "found": one.counts.found, "there": one.counts.there,
               "precision": one.counts.precision, "recall": one.counts.recall, "f1": one.counts.f1}
              for one in summary.label_counts]  # fmt: skip
    faults = [{"kind": kind, "types": types, "times": times} for kind, types, times in summary.entity_mistakes]
    return build_scores(summary) | {
        "slices": to_dict(summary.slicings),
        "labels": labels,
        "confusion": to_dict(summary.confusion),
        "calibration": to_dict(summary.calibration),
        "faults": faults,
        "mistakes": len(summary.mistakes),
        "worst": to_dict(summary.mistakes[:max_mistakes]),
    }
