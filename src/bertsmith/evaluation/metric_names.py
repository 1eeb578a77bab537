"""Display names, one-line descriptions and number formats of metrics."""

import math

from ..metrics.intervals import ConfidenceInterval

METRIC_NAMES = {
    "accuracy": ("accuracy", "share answered right"),
    "f1": ("F1", "precision and recall in one"),
    "f1_macro": ("F1, macro", "mean over labels: rare ones count as much"),
    "f1_micro": ("F1, micro", "over all labels together"),
    "matthews": ("Matthews", "correlation of answers and truth; 0 is chance"),
    "pearson": ("Pearson", "linear correlation"),
    "spearman": ("Spearman", "correlation of ranks"),
    "exact": ("exact match", "answers that are word for word right"),
    "precision": ("precision", "of what was found, the share that is right"),
    "recall": ("recall", "of what there is, the share that was found"),
    "has_answer_exact": ("exact, answerable", "of questions that have an answer"),
    "has_answer_f1": ("F1, answerable", "of questions that have an answer"),
    "no_answer_exact": ("exact, unanswerable", "of questions that have none"),
    "no_answer_f1": ("F1, unanswerable", "of questions that have none"),
    "bleu": ("BLEU", "sacreBLEU of all answers together"),
    "chrf": ("chrF", "runs of characters shared, of all answers together"),
    "rouge1": ("ROUGE-1", "words shared"),
    "rouge2": ("ROUGE-2", "pairs of words shared"),
    "rougeL": ("ROUGE-L", "longest common subsequence"),
    "length": ("same length", "answers with as many characters as the truth"),
    "mean error": ("mean error", "how far off, on average"),
}
DECIMAL_METRICS = ("pearson", "spearman", "matthews", "mean error")  # the others are shown as percentages


def display_name(name: str) -> str:
    """`f1_macro` as "F1, macro", `f1.PER` as "F1 of PER"."""
    kind, dot, label = name.partition(".")
    return f"{display_name(kind)} of {label}" if dot else METRIC_NAMES.get(name, (name.replace("_", " "), ""))[0]


def describe(name: str) -> str:
    """The description shown beside a metric; empty for unknown ones."""
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
    """Three decimals, never 0: `below 0.001`."""
    return "–" if math.isnan(p) else "below 0.001" if p < 0.001 else f"{p:.3f}"
