"""Results of a race: the SVG plot of average scores (frozen and tuned, best first), and the HTML report."""

import math
from collections.abc import Callable

from ..evaluation import metric_names
from ..evaluation.suite import AVERAGE, ScoreCell
from ..reports.charts import compute_axis_range, whisker
from ..reports.html import Html, element, note, render_document, section, table
from ..reports.scatter import LabeledPoint, scatter_chart
from .table import COLUMN_TITLES, RaceResults, ResultRow, format_fact, format_scientific

WIDTH, LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, ROW_HEIGHT = 720, 190, 60, 64, 20
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #3a3d40; } .title { font-size: 15px; font-weight: 600; fill: #1b1c1d; }
.page { fill: #ffffff; } .grid { stroke: #ebecee; } .rung { stroke: #c9ccd0; stroke-width: 2; } .soft { fill: #63676c; }
.frozen { fill: #ffffff; stroke: #d9622b; stroke-width: 2; } .tuned { fill: #2a6fd0; } .end { text-anchor: end; }
""".strip()
MODE_TONES = {"frozen": "one", "tuned": "two"}
CONTROL_TONE = "three"  # of members that were not pre-trained
TABLE_NOTE = (
    "FLOPs are those of pre-training: the products of matrices of a forward pass, two a multiply-add, times three. "
    "Bits per byte are of held-out text, for models that read from left to right (an unknown word costs eight bits a byte); "
    "pseudo-bits, each token hidden alone with both sides in sight, are another thing and compare only with each other. "
    "Scores are means over seeds of fine-tuning and, behind ±, their deviation, times 100; each member is pre-trained once. "
    "Frozen: a small head on features of an encoder that does not learn. Tuned: all of it learns."
)
PlotRow = tuple[str, dict[str, float]]  # a member, and its average score by mode


def draw_score_plot(results: RaceResults) -> bytes | None:
    """The SVG file; None while no member has an average."""
    plot_rows = _plot_rows(results)
    if not plot_rows:
        return None
    averages = [score for _, scores in plot_rows for score in scores.values()]
    low, high = 5 * math.floor(min(averages) / 5), 5 * math.ceil((max(averages) + 0.1) / 5)

    def to_x(score: float) -> float:
        return LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * (score - low) / (high - low)

    bottom = TOP_MARGIN + ROW_HEIGHT * len(plot_rows)
    grid = [shape for score in range(low, high + 1, 5) for shape in _draw_grid_line(to_x(score), bottom, score)]
    shapes = [
        shape
        for index, plot_row in enumerate(plot_rows)
        for shape in _draw_plot_row(plot_row, TOP_MARGIN + ROW_HEIGHT * (index + 0.5), to_x)
    ]
    title = f"{len(plot_rows)} rows, {format_scientific(results.budget)} FLOPs each: average of {', '.join(results.tasks)}"
    page = element("rect", x=0, y=0, width=WIDTH, height=bottom + 30, class_="page")
    labels = [element("text", title, x=16, y=24, class_="title"), *_draw_legend(results)]
    return element("svg", Html(f"<style>{STYLE}</style>"), page, *grid, *shapes, *labels, xmlns="http://www.w3.org/2000/svg",
                   viewBox=f"0 0 {WIDTH} {bottom + 30}", width=WIDTH, height=bottom + 30, role="img",
                   aria_label=title).encode()  # fmt: skip


def _plot_rows(results: RaceResults) -> list[PlotRow]:
    """Members with an average, sorted by the better of their two modes."""
    plot_rows = []
    for row in results.rows:
        cells = {mode: results.cell(mode, row.name, AVERAGE) for mode in results.modes}
        scores = {mode: 100 * cell.mean for mode, cell in cells.items() if cell and not math.isnan(cell.mean)}
        plot_rows += [(row.name, scores)] if scores else []
    return sorted(plot_rows, key=lambda plot_row: -max(plot_row[1].values()))


def _draw_grid_line(x: float, bottom: float, score: int) -> list[Html]:
    return [
        element("line", x1=x, x2=x, y1=TOP_MARGIN, y2=bottom, class_="grid"),
        element("text", str(score), x=x, y=bottom + 18, text_anchor="middle", class_="soft"),
    ]


def _draw_plot_row(plot_row: PlotRow, y: float, to_x: Callable[[float], float]) -> list[Html]:
    name, scores = plot_row
    xs = sorted(to_x(score) for score in scores.values())
    best = max(scores.values())
    return [
        element("text", name, x=LEFT_MARGIN - 14, y=y + 4, class_="end"),
        element("line", x1=xs[0], x2=xs[-1], y1=y, y2=y, class_="rung"),
        *(element("circle", cx=to_x(score), cy=y, r=5, class_=mode) for mode, score in scores.items()),
        element("text", f"{best:.1f}", x=xs[-1] + 10, y=y + 4, class_="soft"),
    ]


def _draw_legend(results: RaceResults) -> list[Html]:
    shapes = []
    for index, mode in enumerate(results.modes):
        shapes += [element("circle", cx=LEFT_MARGIN + 90 * index + 6, cy=44, r=5, class_=mode),
                   element("text", mode, x=LEFT_MARGIN + 90 * index + 18, y=48)]  # fmt: skip
    return shapes


def render_page(results: RaceResults) -> bytes:
    """The HTML report: table, errors, score against size, and intervals by task."""
    num_rows = len(results.rows)
    lead = f"{num_rows} rows · {len(results.tasks)} tasks · {format_scientific(results.budget)} FLOPs each"
    errors = [_render_errors(results)] if any(row.errors for row in results.rows) else []
    scores = [_render_plots(results), _render_intervals(results)] if results.tasks else []
    return render_document("The race", lead, [_render_table(results), *errors, *scores])


def _render_table(results: RaceResults) -> Html:
    head = [
        "",
        *(COLUMN_TITLES[name] for name in results.fact_names),
        *(_column_header(task, mode) for task, mode in results.columns),
    ]
    rows = [_table_row(results, row) for row in results.rows]
    metric_note = (
        [note(f"Measured by: {'; '.join(f'{task}: {_metric_titles(results, task)}' for task in results.tasks)}.")]
        if results.tasks
        else []
    )
    pending_text = f"{results.pending_jobs} jobs are still to be done: run the same command again to go on."
    warnings = [note(pending_text, "warning")] if results.pending_jobs else []
    return section("Table", *warnings, note(TABLE_NOTE), *metric_note, element("div", table(rows, head), class_="race"))


def _table_row(results: RaceResults, row: ResultRow) -> list[Html]:
    facts = [element("span", format_fact(name, row.facts.get(name))) for name in results.fact_names]
    return [_name_cell(row), *facts, *(_score_cell(results, row, task, mode) for task, mode in results.columns)]


def _column_header(task: str, mode: str) -> str:
    return element("span", task, element("br"), element("small", mode))


def _name_cell(row: ResultRow) -> Html:
    source = [element("small", f" of {row.checkpoint_of}")] if row.checkpoint_of else []
    return element("span", row.name, *source)


def _metric_titles(results: RaceResults, task: str) -> str:
    return ", ".join(metric_names.display_name(name) for name in results.metrics.get(task, ()))


def _score_cell(results: RaceResults, row: ResultRow, task: str, mode: str) -> Html:
    cell = results.cell(mode, row.name, task)
    best = cell is not None and cell.mean == results.modes[mode].best_mean(task)
    return element("b" if best else "span", str(cell or "–"), class_="best" if best else None)


def _render_plots(results: RaceResults) -> Html:
    charts = []
    for mode, name in (("tuned", "Fine-tuned"), ("frozen", "Frozen, a head on features")):
        if mode in results.modes:
            charts.append(
                scatter_chart(
                    f"{name}: average score against parameters",
                    _plot_points(results, mode),
                    "parameters",
                    _majority_level(results, mode),
                )
            )
    return section(
        "Scores and sizes",
        note("Every member had the same budget, those in green none; arms are one deviation over seeds."),
        *charts,
    )


def _plot_points(results: RaceResults, mode: str) -> list[LabeledPoint]:
    points = []
    for row in results.rows:
        cell, size = results.cell(mode, row.name, AVERAGE), row.facts.get("parameters")
        if cell and size and not math.isnan(cell.mean):
            tone = MODE_TONES[mode] if row.facts.get("flops") else CONTROL_TONE
            points.append(LabeledPoint(row.name, size, 100 * cell.mean, tone, 100 * (cell.std or 0.0)))
    return points


def _majority_level(results: RaceResults, mode: str) -> tuple[str, float] | None:
    """Name and average of the majority baseline, the row without parameters."""
    for row in results.rows:
        cell = results.cell(mode, row.name, AVERAGE)
        if not row.facts.get("parameters") and cell and not math.isnan(cell.mean):
            return row.name, 100 * cell.mean
    return None


def _render_intervals(results: RaceResults) -> Html:
    """For every column, the scores of all members with their deviation over seeds, on one axis."""
    blocks = [_interval_column(results, task, mode) for task, mode in results.columns]
    explanation = "Arms are one deviation over seeds each way; where they overlap, a difference may be luck."
    return section("How far apart", note(explanation), element("div", *blocks, class_="pair"))


def _interval_column(results: RaceResults, task: str, mode: str) -> Html:
    cells = [
        (row.name, cell) for row in results.rows if (cell := results.cell(mode, row.name, task)) and not math.isnan(cell.mean)
    ]
    cells.sort(key=lambda pair: -pair[1].mean)
    limits = compute_axis_range([edge for _, cell in cells for edge in _cell_interval(cell)])
    axis = element("span", *(element("span", f"{100 * edge:.4g}") for edge in limits), class_="scale")
    rows = [
        (name, str(cell), whisker(_cell_interval(cell)[0], cell.mean, _cell_interval(cell)[1], limits, color=MODE_TONES[mode]))
        for name, cell in cells
    ]
    return element("div", element("h3", f"{task}, {mode}"), table(rows, ("", "", axis)))


def _cell_interval(cell: ScoreCell) -> tuple[float, float]:
    return cell.mean - (cell.std or 0), cell.mean + (cell.std or 0)


def _render_errors(results: RaceResults) -> Html:
    rows = [(row.name, error) for row in results.rows for error in row.errors]
    return section("What went wrong", table(rows, ("member", "why")))
