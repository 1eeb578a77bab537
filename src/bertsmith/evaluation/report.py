"""The HTML report of an evaluation: scores, comparison with another model, labels, slices, calibration, worst mistakes."""

import math
from pathlib import Path

from ..metrics.calibration import ReliabilityBin
from ..reports.charts import HALF_WIDTH, Series, line_chart
from ..reports.html import Html, element, format_value, note, render_document, section, table, tiles
from .calibration import Calibration, CalibrationStats
from .metric_names import describe, display_name, format_interval, format_p_value, format_score
from .report_tables import render_columns, render_labels, render_mistake, render_mistakes, render_slices
from .slices import find_weak_slices
from .summary import EvaluationSummary

MAX_FLIPS = 8  # examples shown that only the other model predicts correctly


def render_report(summary: EvaluationSummary, max_mistakes: int = 30) -> bytes:
    """The whole page, with the `max_mistakes` worst mistakes."""
    parts = [render_scores(summary)]
    if summary.comparison:
        parts.append(render_comparison(summary))
    if label_tables := render_labels(summary):
        parts.append(section("What goes wrong", *label_tables))
    if summary.slicings:
        parts.append(render_slices(summary))
    if summary.calibration:
        parts.append(render_calibration(summary.calibration))
    lead = f"{summary.task_kind} · {summary.data} · {len(summary.evaluation.examples):,} examples"
    return render_document(f"How good {Path(summary.model).name} is", lead, [*parts, render_mistakes(summary, max_mistakes)])


def render_scores(summary: EvaluationSummary) -> Html:
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
    score_table = table(rows, ("score", "value", "95% interval", "")) if len(rows) > len(facts) else Html("")
    details = element("details", element("summary", "Every score"), score_table) if score_table else Html("")
    findings = element("ul", *(element("li", text) for text in describe_findings(summary)), class_="findings")
    return section("Scores", tiles(facts), findings, details)


def describe_findings(summary: EvaluationSummary) -> list[str]:
    """The most important findings as sentences: majority baseline, weakest slices, commonest mistake, overconfidence."""
    name, result = summary.slice_metric
    findings = []
    if summary.majority_baseline:
        label, accuracy = summary.majority_baseline
        findings.append(f"Always answering “{label}” would be right {accuracy:.1%} of the time.")
    for by, weak in find_weak_slices(summary.slicings, result.score, result.lower_is_better)[:2]:
        score = f"{display_name(name)} {format_score(name, weak.score.value)}"
        overall = format_score(name, result.score)
        findings.append(f"Weakest by {by}, “{weak.name}”: {score} on {weak.count:,} examples, {overall} on all.")
    if summary.entity_mistakes:
        kind, types, count = summary.entity_mistakes[0]
        total = sum(row[2] for row in summary.entity_mistakes)
        findings.append(f"The most frequent fault of {total:,}: {kind} ({types}), {count:,} times.")
    elif summary.confusion and (pairs := summary.confusion.most_confused(1)):
        gold, predicted, count = pairs[0]
        findings.append(f"The most frequent mistake: “{gold}” taken for “{predicted}”, {count:,} times.")
    return findings + _describe_confidence(summary.calibration)


def render_comparison(summary: EvaluationSummary) -> Html:
    """Scores of both models, their differences and p-values, and the examples on which they disagree."""
    assert summary.comparison is not None
    comparison, other = summary.comparison, Path(summary.other_model or "").name
    model = Path(summary.model).name
    model, other = (model, other) if model != other else (summary.model, str(summary.other_model))
    header = ["score", model, other, "difference", "95% interval", "p, paired bootstrap"]
    rows = []
    for difference in comparison.differences:
        name, interval = difference.name, difference.above
        bounds = f"{_format_signed(name, interval.low)} to {_format_signed(name, interval.high)}"
        scores = [format_score(name, difference.score), format_score(name, difference.other)]
        rows.append([display_name(name), *scores, _format_signed(name, interval.value), bounds, format_p_value(difference.p)])
    if any(difference.exact_p is not None for difference in comparison.differences):
        header.append("p, McNemar")
        rows = [[*row, "" if difference.exact_p is None else format_p_value(difference.exact_p)]
                for row, difference in zip(rows, comparison.differences, strict=True)]  # fmt: skip
    parts = [note(_describe_significance(summary, model, other)), table(rows, header)]
    if comparison.both is not None:
        names = ("both are right", f"only {model} is right", f"only {other} is right", "neither is right")
        counts = (comparison.both, comparison.only, comparison.only_other, comparison.neither)
        facts = [(name, count, "") for name, count in zip(names, counts, strict=True)]
        parts += [element("h3", "Example by example"), tiles(facts), *_render_flips(summary, other)]
    return section(f"Against {other}", *parts)


def render_calibration(calibration: Calibration) -> Html:
    """The reliability diagram, expected calibration error and NLL, with and without the fitted temperature."""
    uncalibrated = calibration.before if calibration.temperature not in (None, 1.0) else None
    name = "with the temperature" if uncalibrated else "this model"
    series = [Series(name, _reliability_points(calibration.after), "dots")]
    series += [Series("without", _reliability_points(uncalibrated), "dots")] if uncalibrated else []
    series.append(Series("right as often as said", [(0.0, 0.0), (1.0, 1.0)]))
    chart = line_chart("How often right, by how sure", series, "confidence", include_zero=True, width=HALF_WIDTH)
    columns = (
        {"this model": calibration.after}
        if not uncalibrated
        else {"without": uncalibrated, f"temperature {calibration.temperature:.3f}": calibration.after}
    )
    rows = [("expected calibration error", *(stats.error for stats in columns.values()))]
    if calibration.after.loss is not None:
        rows.append(("nats a true answer costs", *(stats.loss for stats in columns.values())))
    bins = [(f"{bin_.low:.0%}–{bin_.high:.0%}", bin_.count, f"{bin_.confidence:.1%}", f"{bin_.accuracy:.1%}")
            for bin_ in calibration.after.bins]  # fmt: skip
    caption = "Points below the line: the model is surer than it is right. A bin of few answers may stand anywhere."
    bin_table = table(bins, ("confidence", "answers", "mean", "right"))
    tables = [table(rows, ("", *columns)), element("h3", "Answers by confidence"), bin_table]
    return section("How sure it is", note(caption), render_columns([chart], tables))


def _reliability_points(stats: CalibrationStats) -> list[tuple[float, float]]:
    return [(bin_.confidence, bin_.accuracy) for bin_ in stats.bins]


def _metric_subtitle(summary: EvaluationSummary, name: str) -> str:
    return f"{_format_interval(summary, name)} · {describe(name)}".strip(" ·–")


def _format_interval(summary: EvaluationSummary, name: str) -> str:
    interval = summary.evaluation.intervals.get(name)
    return format_interval(name, interval) if interval else "–"


def _is_redundant(summary: EvaluationSummary, name: str) -> bool:
    """Micro F1 equals accuracy in single-label tasks; entity types have a table of their own."""
    return "." in name or (name == "f1_micro" and summary.primary_metric == "accuracy")


def _describe_confidence(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    confidence, accuracy, count = _mean_confidence(calibration.after.bins)
    if count < 50 or abs(confidence - accuracy) < 0.02:
        return []
    how = "surer" if confidence > accuracy else "less sure"
    return [f"It is {how} than it should be: {confidence:.1%} on average, right {accuracy:.1%} of times."]


def _mean_confidence(bins: list[ReliabilityBin]) -> tuple[float, float, int]:
    """(mean confidence, accuracy, number of predictions) over all bins."""
    count = sum(bin_.count for bin_ in bins)
    confidence = sum(bin_.confidence * bin_.count for bin_ in bins) / count
    accuracy = sum(bin_.accuracy * bin_.count for bin_ in bins) / count
    return confidence, accuracy, count


def _describe_significance(summary: EvaluationSummary, model: str, other: str) -> str:
    assert summary.comparison is not None
    difference = next(d for d in summary.comparison.differences if d.name == summary.primary_metric)
    name, p = display_name(difference.name), difference.p if difference.exact_p is None else difference.exact_p
    p_value = format_p_value(p)
    if math.isnan(p) or p >= 0.05:
        return f"By {name} the two cannot be told apart on these examples: chance alone would do this (p = {p_value})."
    better = model if difference.above.value > 0 else other
    return f"By {name} {better} is better, by more than chance would do (p {'= ' if p >= 0.001 else ''}{p_value})."


def _format_signed(name: str, score: float) -> str:
    text = format_score(name, abs(score))
    return text if text == "–" or not score else f"{'+' if score > 0 else '−'}{text}"


def _render_flips(summary: EvaluationSummary, other: str) -> list[Html]:
    """The worst of the mistakes that the other model does not make."""
    assert summary.comparison is not None
    lost = {summary.evaluation.examples[i].location for i in summary.comparison.lost}
    shown = [mistake for mistake in summary.mistakes if mistake.place in lost][:MAX_FLIPS]
    if not shown:
        return []
    heading = element("summary", f"What {other} gets right and this model does not ({format_value(len(lost))})")
    return [element("details", heading, *map(render_mistake, shown))]
