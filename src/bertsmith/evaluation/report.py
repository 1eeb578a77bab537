"""The HTML report of an evaluation: scores, comparison with another model, labels, slices, calibration, worst errors."""

import math
from pathlib import Path

from ..metrics.calibration import ReliabilityBin
from ..reports.charts import HALF_WIDTH, Series, line_chart
from ..reports.html import Section, format_value, render, render_document
from .calibration import Calibration, CalibrationStats
from .metric_names import describe, display_name, format_interval, format_p_value, format_score
from .report_tables import describe_mistake, render_labels, render_mistakes, render_slices
from .slices import find_weak_slices
from .summary import EvaluationSummary

MAX_FLIPS = 8  # number of examples shown that only the other model predicts correctly


def render_report(summary: EvaluationSummary, max_mistakes: int = 30) -> bytes:
    """The whole page, with the `max_mistakes` worst errors."""
    sections = [
        render_scores(summary),
        render_comparison(summary) if summary.comparison else None,
        render_labels(summary) if summary.label_counts or summary.confusion else None,
        render_slices(summary) if summary.slicings else None,
        render_calibration(summary.calibration) if summary.calibration else None,
        render_mistakes(summary, max_mistakes),
    ]
    lead = f"task: {summary.task_kind} · {summary.data} · {len(summary.evaluation.examples):,} examples"
    return render_document(f"Evaluation of {Path(summary.model).name}", lead, [part for part in sections if part])


def render_scores(summary: EvaluationSummary) -> Section:
    """The main scores as tiles, the findings as sentences, and all scores as a table."""
    evaluation, primary = summary.evaluation, summary.primary_metric
    order = [primary, *(name for name in evaluation.intervals if name != primary and not _is_redundant(summary, name))]
    facts = [
        (display_name(name), format_score(name, evaluation.scores[name]), _metric_subtitle(summary, name)) for name in order[:4]
    ]
    rows = [
        (display_name(name), format_score(name, value), _format_interval(summary, name), describe(name))
        for name, value in evaluation.scores.items()
    ]
    rows = rows if len(rows) > len(facts) else []
    return Section("Scores", render("evaluation", "scores", facts=facts, findings=describe_findings(summary), rows=rows))


def describe_findings(summary: EvaluationSummary) -> list[str]:
    """The most important findings as sentences: majority baseline, weakest slices, most frequent error, overconfidence."""
    name, result = summary.slice_metric
    findings = []
    if summary.majority_baseline:
        label, accuracy = summary.majority_baseline
        findings.append(f"Majority baseline: always predicting “{label}” has an accuracy of {accuracy:.1%}.")
    for by, weak in find_weak_slices(summary.slicings, result.score, result.lower_is_better)[:2]:
        score = f"{display_name(name)} {format_score(name, weak.score.value)}"
        overall = format_score(name, result.score)
        findings.append(f"Weak slice, {by} “{weak.name}”: {score} on {weak.count:,} examples; {overall} on all examples.")
    if summary.entity_mistakes:
        kind, types, count = summary.entity_mistakes[0]
        total = sum(row[2] for row in summary.entity_mistakes)
        findings.append(f"Most frequent of {total:,} entity errors: {kind} ({types}), {count:,} times.")
    elif summary.confusion and (pairs := summary.confusion.most_confused(1)):
        gold, predicted, count = pairs[0]
        findings.append(f"Most frequent confusion: “{gold}” predicted as “{predicted}”, {count:,} times.")
    return findings + _describe_confidence(summary.calibration)


def render_comparison(summary: EvaluationSummary) -> Section:
    """Scores of both models, their differences and p-values, and the examples on which they disagree."""
    assert summary.comparison is not None
    comparison, other = summary.comparison, Path(summary.other_model or "").name
    model = Path(summary.model).name
    model, other = (model, other) if model != other else (summary.model, str(summary.other_model))
    header = ["metric", model, other, "difference", "95% CI", "p (paired bootstrap)"]
    rows = []
    for difference in comparison.differences:
        name, interval = difference.name, difference.difference
        bounds = f"{_format_signed(name, interval.low)} to {_format_signed(name, interval.high)}"
        scores = [format_score(name, difference.score), format_score(name, difference.other_score)]
        rows.append(
            [display_name(name), *scores, _format_signed(name, interval.value), bounds, format_p_value(difference.p_value)]
        )
    if any(difference.mcnemar_p_value is not None for difference in comparison.differences):
        header.append("p (McNemar)")
        rows = [[*row, "" if difference.mcnemar_p_value is None else format_p_value(difference.mcnemar_p_value)]
                for row, difference in zip(rows, comparison.differences, strict=True)]  # fmt: skip
    names = ("both correct", f"only {model} correct", f"only {other} correct", "neither correct")
    counts = (
        comparison.both_correct,
        comparison.only_this_correct,
        comparison.only_other_correct,
        comparison.neither_correct,
    )
    total = len(summary.evaluation.examples)
    outcomes = [
        (name, count, f"{count / total:.1%} of the examples")
        for name, count in zip(names, counts, strict=True)
        if count is not None
    ]
    lost = {summary.evaluation.examples[i].location for i in comparison.lost}
    flips = [describe_mistake(mistake) for mistake in summary.mistakes if mistake.location in lost][:MAX_FLIPS]
    body = render(
        "evaluation",
        "comparison",
        verdict=_describe_significance(summary, model, other),
        rows=rows,
        header=header,
        outcomes=outcomes,
        flips_title=f"Examples that only {other} predicts correctly ({format_value(len(lost))})",
        flips=flips,
    )
    return Section(f"Comparison with {other}", body)


def render_calibration(calibration: Calibration) -> Section:
    """The reliability diagram, expected calibration error and NLL, before and after temperature scaling."""
    uncalibrated = calibration.uncalibrated if calibration.temperature not in (None, 1.0) else None
    name = "after temperature scaling" if uncalibrated else "this model"
    series = [Series(name, _reliability_points(calibration.calibrated), "dots")]
    series += [Series("before", _reliability_points(uncalibrated), "dots")] if uncalibrated else []
    series.append(Series("perfect calibration", [(0.0, 0.0), (1.0, 1.0)]))
    chart = line_chart("Accuracy by confidence", series, "confidence", include_zero=True, width=HALF_WIDTH)
    columns = (
        {"this model": calibration.calibrated}
        if not uncalibrated
        else {"before": uncalibrated, f"after (T = {calibration.temperature:.3f})": calibration.calibrated}
    )
    rows = [("expected calibration error", *(stats.expected_calibration_error for stats in columns.values()))]
    if calibration.calibrated.nll is not None:
        rows.append(("NLL of the gold label (nats)", *(stats.nll for stats in columns.values())))
    bins = [(f"{bin_.low:.0%}–{bin_.high:.0%}", bin_.count, f"{bin_.confidence:.1%}", f"{bin_.accuracy:.1%}")
            for bin_ in calibration.calibrated.bins]  # fmt: skip
    caption = (
        "Accuracy of the predictions by confidence. Points below the diagonal mean that the model is overconfident. "
        "Bins with few predictions are noisy."
    )
    body = render("evaluation", "calibration", caption=caption, chart=chart, rows=rows, header=("", *columns), bins=bins)
    return Section("Calibration", body)


def _reliability_points(stats: CalibrationStats) -> list[tuple[float, float]]:
    return [(bin_.confidence, bin_.accuracy) for bin_ in stats.bins]


def _metric_subtitle(summary: EvaluationSummary, name: str) -> str:
    interval = _format_interval(summary, name)
    return " · ".join(text for text in (f"95% CI {interval}" if interval != "–" else "", describe(name)) if text)


def _format_interval(summary: EvaluationSummary, name: str) -> str:
    interval = summary.evaluation.intervals.get(name)
    return format_interval(name, interval) if interval else "–"


def _is_redundant(summary: EvaluationSummary, name: str) -> bool:
    """Micro F1 equals accuracy in single-label tasks; entity types have a table of their own."""
    return "." in name or (name == "f1_micro" and summary.primary_metric == "accuracy")


def _describe_confidence(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    confidence, accuracy, count = _mean_confidence(calibration.calibrated.bins)
    if count < 50 or abs(confidence - accuracy) < 0.02:
        return []
    verdict = "Overconfident" if confidence > accuracy else "Underconfident"
    return [f"{verdict}: the mean confidence is {confidence:.1%}, the accuracy {accuracy:.1%}."]


def _mean_confidence(bins: list[ReliabilityBin]) -> tuple[float, float, int]:
    """(mean confidence, accuracy, number of predictions) over all bins."""
    count = sum(bin_.count for bin_ in bins)
    confidence = sum(bin_.confidence * bin_.count for bin_ in bins) / count
    accuracy = sum(bin_.accuracy * bin_.count for bin_ in bins) / count
    return confidence, accuracy, count


def _describe_significance(summary: EvaluationSummary, model: str, other: str) -> str:
    assert summary.comparison is not None
    difference = next(d for d in summary.comparison.differences if d.name == summary.primary_metric)
    name = display_name(difference.name)
    p = difference.p_value if difference.mcnemar_p_value is None else difference.mcnemar_p_value
    p_text = f"p {'= ' if not p < 0.001 else ''}{format_p_value(p)}"
    if math.isnan(p) or p >= 0.05:
        return f"The difference in {name} is not statistically significant ({p_text})."
    is_error = summary.evaluation.metrics[difference.name].lower_is_better
    better = model if (difference.difference.value > 0) != is_error else other
    return f"{better} has the better {name}; the difference is statistically significant ({p_text})."


def _format_signed(name: str, score: float) -> str:
    text = format_score(name, abs(score))
    return text if text == "–" or not score else f"{'+' if score > 0 else '−'}{text}"
