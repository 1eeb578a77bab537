"""The front as an offline HTML page: what was chosen, the table of all artifacts, score against size and against latency."""

from collections.abc import Callable

from markupsafe import Markup

from ...evaluation.metric_names import display_name, format_score
from ...reports.charts import LabeledPoint, scatter_chart
from ...reports.html import Section, note, render, render_document, section
from .front import Artifact, Front

SCORE_COLUMNS = ("95% interval", "kept", "MB", "smaller", "gate")
COST_COLUMNS = ("p50 ms", "p99 ms", "faster", "examples/s", "RAM MB", "front")
COLORS, CHOSEN_COLOR = {"fp32": "one", "int8": "two"}, "three"
NOTES = (
    "Score: on the dev examples, computed by the exported graph, with its 95 % bootstrap interval. Kept: share of the score of "
    "the original in fp32.",
    "MB: all files of the folder. RAM: highest resident memory of a process that loads it and answers. p50, p99: one example "
    "at a time. Examples/s: 32 at a time. Real dev examples, tokenization included; the artifacts took turns on one machine.",
    "Front: no other artifact is at least as good in score, size and median latency, and better in one of them.",
)


def render_page(front: Front, model: str) -> bytes:
    """The page as a complete HTML file."""
    lead = f"{model} · {len(front.artifacts)} artifacts · {display_name(front.metric)} · gate {front.gate:.0%}"
    parts = [
        _choice_section(front), _plot_section(front),
        section("Scores and sizes", _table(front, SCORE_COLUMNS), note(NOTES[0])),
        section("Speed and memory", _table(front, COST_COLUMNS), *(note(text) for text in NOTES[1:])),
    ]  # fmt: skip
    if front.omitted:
        rows = [(omitted.name, omitted.reason) for omitted in front.omitted]
        parts.append(section("Left out", render("macros", "table", rows=rows, header=("candidate", "reason"))))
    return render_document("Accuracy, latency and size", lead, parts)


def _choice_section(front: Front) -> Section:
    chosen = front.chosen
    if chosen is None:
        best = front.best_smaller
        found = f" The best one, {best.name}, keeps {best.kept:.1%}." if best else ""
        text = f"No smaller artifact keeps {front.gate:.1%} of the score, so no model was written.{found}"
        return section("Choice", render("macros", "warning", text=text))
    facts = [
        ("chosen", chosen.name, f"the smallest that keeps {front.gate:.1%} of the score"),
        (display_name(front.metric), format_score(front.metric, chosen.score.value), f"{chosen.kept:.1%} of the original's"),
        ("size", f"{chosen.cost.bytes / 1e6:.1f} MB", f"{front.shrinkage(chosen):.1f} times smaller"),
        (
            "latency",
            f"{1000 * chosen.cost.latency_p50:.2f} ms",
            f"{front.speedup(chosen):.1f} times faster, median of one text",
        ),
    ]
    return section("Choice", render("macros", "tiles", facts=facts))


def _table(front: Front, columns: tuple[str, ...]) -> Markup:
    """These columns of the front's table; with those of the score also the score itself."""
    header = ("", display_name(front.metric), *front.header()[2:])
    indices = [0, *([1] if columns is SCORE_COLUMNS else []), *(header.index(name) for name in columns)]
    rows = [tuple(_to_cell(front.row(artifact)[index]) for index in indices) for artifact in front.artifacts]
    return render("macros", "table", rows=rows, header=[header[index] for index in indices])


def _to_cell(text: str) -> str | float:
    """Numbers as such, so that they are aligned."""
    try:
        return float(text.replace(",", "").removesuffix("x"))
    except ValueError:
        return text


def _plot_section(front: Front) -> Section:
    plots = [
        _plot(front, "latency, median of one text", "milliseconds", lambda artifact: 1000 * artifact.cost.latency_p50),
        _plot(front, "size", "MB", lambda artifact: artifact.cost.bytes / 1e6),
    ]
    legend = note("Blue: fp32, orange: int8, green: the chosen one. Error bars: 95 % intervals. Up and to the left is better.")
    return section("Front", legend, *plots)


def _plot(front: Front, name: str, unit: str, cost: Callable[[Artifact], float]) -> Markup:
    points = [_point(front, artifact, cost(artifact)) for artifact in front.artifacts]
    title = f"{display_name(front.metric)} by {name}"
    return scatter_chart(title, points, unit, ("gate", _scale(front, front.gate_score)))


def _point(front: Front, artifact: Artifact, x: float) -> LabeledPoint:
    score = artifact.score
    error = (score.high - score.low) / 2
    color = CHOSEN_COLOR if artifact is front.chosen else COLORS[artifact.candidate.precision]
    return LabeledPoint(artifact.name, x, _scale(front, score.value), color, _scale(front, error))


def _scale(front: Front, value: float) -> float:
    """Scores in percent, as in the table; correlations and errors as they are."""
    return 100 * value if format_score(front.metric, 0.5).endswith("%") else value
