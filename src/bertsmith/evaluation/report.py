"""The report of an evaluation: one page, the numbers first, then what goes wrong, where, and how sure the model is of it."""

import math
from pathlib import Path

from ..metrics.calibration import ReliabilityBin
from ..reports.charts import HALF_WIDTH, Series, line_chart
from ..reports.html import Html, element, format_value, note, render_document, section, table, tiles
from . import metric_names
from .calibration import Calibration, CalibrationStats
from .report_tables import render_columns, render_labels, render_mistake, render_mistakes, render_slices
from .slices import find_weak_slices
from .summary import EvaluationSummary

MAX_FLIPS = 8  # examples told that only one of two models answers right


def render_report(summary: EvaluationSummary, max_mistakes: int = 30) -> bytes:
    """The page, with the `most` worst mistakes."""
    parts = [render_scores(summary)]
    if summary.comparison:
        parts.append(render_comparison(summary))
    if wrong := render_labels(summary):
        parts.append(section("What goes wrong", *wrong))
    if summary.slicings:
        parts.append(render_slices(summary))
    if summary.calibration:
        parts.append(render_calibration(summary.calibration))
    lead = f"{summary.task_kind} · {summary.data} · {len(summary.evaluation.examples):,} examples"
    return render_document(f"How good {Path(summary.model).name} is", lead, [*parts, render_mistakes(summary, max_mistakes)])


def render_scores(summary: EvaluationSummary) -> Html:
    """The scores as tiles, what stands out in sentences, and all of them as a table."""
    judged, main = summary.evaluation, summary.primary_metric
    order = [main, *(name for name in judged.intervals if name != main and not _is_redundant(summary, name))]
    facts = [
        (metric_names.display_name(name), metric_names.format_score(name, judged.scores[name]), _metric_subtitle(summary, name))
        for name in order[:4]
    ]
    rows = [(metric_names.display_name(name), metric_names.format_score(name, value), _format_interval(summary, name), metric_names.describe(name))
            for name, value in judged.scores.items()]  # fmt: skip
    every = table(rows, ("score", "value", "95% interval", "")) if len(rows) > len(facts) else Html("")
    told = element("details", element("summary", "Every score"), every) if every else Html("")
    found = element("ul", *(element("li", text) for text in describe_findings(summary)), class_="findings")
    return section("Scores", tiles(facts), found, told)


def describe_findings(summary: EvaluationSummary) -> list[str]:
    """What a reader should know before any table, in sentences."""
    name, measure = summary.slice_metric
    told = []
    if summary.majority_baseline:
        label, share = summary.majority_baseline
        told.append(f"Always answering “{label}” would be right {share:.1%} of the time.")
    for by, one in find_weak_slices(summary.slicings, measure.score, measure.lower_is_better)[:2]:
        score = f"{metric_names.display_name(name)} {metric_names.format_score(name, one.score.value)}"
        told.append(
            f"Weakest by {by}, “{one.name}”: {score} on {one.count:,} examples, {metric_names.format_score(name, measure.score)} on all."
        )
    if summary.entity_mistakes:
        kind, types, times = summary.entity_mistakes[0]
        told.append(
            f"The most frequent fault of {sum(f[2] for f in summary.entity_mistakes):,}: {kind} ({types}), {times:,} times."
        )
    elif summary.confusion and (pairs := summary.confusion.most_confused(1)):
        true, said, times = pairs[0]
        told.append(f"The most frequent mistake: “{true}” taken for “{said}”, {times:,} times.")
    return told + _describe_confidence(summary.calibration)


def render_comparison(summary: EvaluationSummary) -> Html:
    """Both models side by side, and whether chance alone could have put them apart."""
    assert summary.comparison is not None
    found, other = summary.comparison, Path(summary.other_model or "").name
    mine = Path(summary.model).name
    mine, other = (mine, other) if mine != other else (summary.model, str(summary.other_model))
    head = ["score", mine, other, "difference", "95% interval", "p, paired bootstrap"]
    rows = [[metric_names.display_name(one.name), metric_names.format_score(one.name, one.score), metric_names.format_score(one.name, one.other),
             _format_signed(one.name, one.above.value), f"{_format_signed(one.name, one.above.low)} to {_format_signed(one.name, one.above.high)}",
             metric_names.format_p_value(one.p)] for one in found.differences]  # fmt: skip
    if any(one.exact_p is not None for one in found.differences):
        head.append("p, McNemar")
        rows = [[*row, "" if one.exact_p is None else metric_names.format_p_value(one.exact_p)]
                for row, one in zip(rows, found.differences, strict=True)]  # fmt: skip
    parts = [note(_describe_significance(summary, mine, other)), table(rows, head)]
    if found.both is not None:
        names = ("both are right", f"only {mine} is right", f"only {other} is right", "neither is right")
        counts = (found.both, found.only, found.only_other, found.neither)
        facts = [(name, count, "") for name, count in zip(names, counts, strict=True)]
        parts += [element("h3", "Example by example"), tiles(facts), *_render_flips(summary, other)]
    return section(f"Against {other}", *parts)


def render_calibration(calibration: Calibration) -> Html:
    """The reliability diagram, and how far off confidence is."""
    moved = calibration.before if calibration.temperature not in (None, 1.0) else None
    series = [Series("with the temperature" if moved else "this model", _reliability_points(calibration.after), "dots")]
    series += [Series("without", _reliability_points(moved), "dots")] if moved else []
    series.append(Series("right as often as said", [(0.0, 0.0), (1.0, 1.0)]))
    chart = line_chart("How often right, by how sure", series, "confidence", include_zero=True, width=HALF_WIDTH)
    both = (
        {"this model": calibration.after}
        if not moved
        else {"without": moved, f"temperature {calibration.temperature:.3f}": calibration.after}
    )
    numbers = [("expected calibration error", *(one.error for one in both.values()))]
    if calibration.after.loss is not None:
        numbers.append(("nats a true answer costs", *(one.loss for one in both.values())))
    bins = [(f"{one.low:.0%}–{one.high:.0%}", one.count, f"{one.confidence:.1%}", f"{one.accuracy:.1%}")
            for one in calibration.after.bins]  # fmt: skip
    told = "Points below the line: the model is surer than it is right. A bin of few answers may stand anywhere."
    side = [table(numbers, ("", *both)), element("h3", "Answers by confidence")]
    return section(
        "How sure it is", note(told), render_columns([chart], [*side, table(bins, ("confidence", "answers", "mean", "right"))])
    )


def _reliability_points(stats: CalibrationStats) -> list[tuple[float, float]]:
    return [(one.confidence, one.accuracy) for one in stats.bins]


def _metric_subtitle(summary: EvaluationSummary, name: str) -> str:
    return f"{_format_interval(summary, name)} · {metric_names.describe(name)}".strip(" ·–")


def _format_interval(summary: EvaluationSummary, name: str) -> str:
    found = summary.evaluation.intervals.get(name)
    return metric_names.format_interval(name, found) if found else "–"


def _is_redundant(summary: EvaluationSummary, name: str) -> bool:
    """Of one label each, micro F1 is accuracy by another name; single types have their table."""
    return "." in name or (name == "f1_micro" and summary.primary_metric == "accuracy")


def _describe_confidence(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    sure, hit, count = _mean_confidence(calibration.after.bins)
    if count < 50 or abs(sure - hit) < 0.02:
        return []
    return [
        f"It is {'surer' if sure > hit else 'less sure'} than it should be: {sure:.1%} on average, right {hit:.1%} of times."
    ]


def _mean_confidence(bins: list[ReliabilityBin]) -> tuple[float, float, int]:
    count = sum(one.count for one in bins)
    sure, hit = (sum(getattr(one, name) * one.count for one in bins) / count for name in ("confidence", "accuracy"))
    return sure, hit, count


def _describe_significance(summary: EvaluationSummary, mine: str, other: str) -> str:
    assert summary.comparison is not None
    one = next(d for d in summary.comparison.differences if d.name == summary.primary_metric)
    name, p = metric_names.display_name(one.name), one.p if one.exact_p is None else one.exact_p
    if math.isnan(p) or p >= 0.05:
        return f"By {name} the two cannot be told apart on these examples: chance alone would do this (p = {metric_names.format_p_value(p)})."
    better = mine if one.above.value > 0 else other
    return f"By {name} {better} is better, by more than chance would do (p {'= ' if p >= 0.001 else ''}{metric_names.format_p_value(p)})."


def _format_signed(name: str, score: float) -> str:
    text = metric_names.format_score(name, abs(score))
    return text if text == "–" or not score else f"{'+' if score > 0 else '−'}{text}"


def _render_flips(summary: EvaluationSummary, other: str) -> list[Html]:
    """The worst of the mistakes that only this model makes."""
    assert summary.comparison is not None
    lost = {summary.evaluation.examples[i].location for i in summary.comparison.lost}
    told = [one for one in summary.mistakes if one.place in lost][:MAX_FLIPS]
    if not told:
        return []
    heading = element("summary", f"What {other} gets right and this model does not ({format_value(len(lost))})")
    return [element("details", heading, *map(render_mistake, told))]
