"""Names, one-line descriptions and number formats of metrics."""

import math

from ..errors import UserError
from ..metrics.intervals import ConfidenceInterval
from ..tasks import Task

METRIC_NAMES = {
    "accuracy": ("accuracy", "fraction of correct predictions"),
    "f1": ("F1", "harmonic mean of precision and recall"),
    "f1_macro": ("macro F1", "unweighted mean over labels"),
    "f1_micro": ("micro F1", "from the counts of all labels together"),
    "matthews": ("Matthews correlation", "of predicted and gold labels; 0 is chance"),
    "pearson": ("Pearson correlation", "linear correlation"),
    "spearman": ("Spearman correlation", "rank correlation"),
    "exact": ("exact match", "predictions equal to the gold answer"),
    "precision": ("precision", "fraction of predicted entities that are correct"),
    "recall": ("recall", "fraction of gold entities that are found"),
    "has_answer_exact": ("exact match, answerable", "questions that have an answer"),
    "has_answer_f1": ("F1, answerable", "questions that have an answer"),
    "no_answer_exact": ("exact match, unanswerable", "questions without an answer"),
    "no_answer_f1": ("F1, unanswerable", "questions without an answer"),
    "bleu": ("BLEU", "corpus-level sacreBLEU"),
    "chrf": ("chrF", "corpus-level F-score of character n-grams"),
    "rouge1": ("ROUGE-1", "unigram overlap"),
    "rouge2": ("ROUGE-2", "bigram overlap"),
    "rougeL": ("ROUGE-L", "longest common subsequence"),
    "same_length": ("same length", "outputs with as many characters as the target"),
    "mean_absolute_error": ("mean absolute error", "in the units of the labels"),
}
DECIMAL_METRICS = ("pearson", "spearman", "matthews", "mean_absolute_error")  # the others are shown as percentages


def resolve_best_metric(task: Task, requested: str | None = None) -> str:
    """The name of the metric that selects the best checkpoint or seed: `requested`, or the primary metric."""
    if requested and requested not in task.metric_names:
        raise UserError(
            f"metric_for_best_model={requested} is not a metric of this task; choose one of {', '.join(task.metric_names)}"
        )
    return requested or task.primary_metric


def display_name(name: str) -> str:
    """`f1_macro` as "macro F1", `f1.PER` as "F1 of PER"."""
    kind, dot, label = name.partition(".")
    return f"{display_name(kind)} of {label}" if dot else METRIC_NAMES.get(name, (name.replace("_", " "), ""))[0]


def describe(name: str) -> str:
    """The description shown next to a metric; empty for unknown ones."""
    return METRIC_NAMES.get(name, ("", ""))[1]


def format_score(name: str, score: float | None) -> str:
    """87.2%, or 0.872 for correlations, errors and thresholds; a dash for None and NaN."""
    if score is None or math.isnan(score):
        return "–"
    return f"{score:.3f}" if name in DECIMAL_METRICS or name.endswith("threshold") else f"{score:.1%}"


def format_interval(name: str, interval: ConfidenceInterval) -> str:
    """`84.9 – 89.3%`; a dash where a bound is NaN."""
    low, high = format_score(name, interval.low), format_score(name, interval.high)
    if "–" in (low, high):
        return "–"
    return f"{low.removesuffix('%')} – {high}"


def format_p_value(p: float) -> str:
    """Three decimals; `< 0.001` below that."""
    return "–" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"
