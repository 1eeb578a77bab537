"""Results of a race: the SVG plot of average scores (frozen and tuned, best first), and the HTML report."""

import math

from ..evaluation import metric_names
from ..evaluation.suite import AVERAGE, SPREAD_CAPTION, interval_block
from ..reports.charts import LabeledPoint, dumbbell_chart, scatter_chart
from ..reports.html import Section, render, render_document
from .table import COLUMN_TITLES, RaceResults, ResultRow, format_fact, format_scientific

MODE_COLORS = {"frozen": "one", "tuned": "two"}
MODE_TITLES = {"tuned": "Fine-tuned", "frozen": "Frozen encoder"}
CONTROL_COLOR = "three"  # of models that were not pre-trained
TABLE_NOTES = (
    "Params is the number of parameters, and seconds the time of pre-training. FLOPs are those of pre-training: matrix "
    "products of the forward pass (a multiply-add counts as two) times three.",
    "Bits per byte are the loss of causal language models on validation text; unknown words count as eight bits per byte. "
    "Pseudo-bits per byte mask one token at a time and use the context on both sides, so they compare masked language models "
    "only with each other.",
    "Scores are the mean ± standard deviation over fine-tuning seeds, times 100; each model is pre-trained once. "
    "Frozen: only a head on the features of the encoder is trained. Tuned: all weights are trained.",
)
PlotRow = tuple[str, dict[str, float]]  # a model, and its average score by mode


def draw_score_plot(results: RaceResults) -> bytes | None:
    """The SVG file; None while no model has an average."""
    plot_rows = _plot_rows(results)
    if not plot_rows:
        return None
    title = (
        f"Average score on {', '.join(results.tasks)}: {len(plot_rows)} models, {format_scientific(results.budget)} FLOPs each"
    )
    return dumbbell_chart(title, plot_rows, {mode: MODE_COLORS[mode] for mode in results.modes})


def render_page(results: RaceResults) -> bytes:
    """The HTML report: table, errors, score against size, and intervals by task."""
    lead = f"{len(results.rows)} models · {len(results.tasks)} tasks · {format_scientific(results.budget)} FLOPs each"
    sections = [_results_section(results)]
    if errors := [(row.name, error) for row in results.rows for error in row.errors]:
        sections.append(Section("Errors", render("race", "errors", rows=errors)))
    if results.tasks:
        sections += [_plots_section(results), _spread_section(results)]
    return render_document("Race: models at equal pre-training compute", lead, sections)


def _results_section(results: RaceResults) -> Section:
    warnings, notes = [], list(TABLE_NOTES)
    if results.pending_jobs:
        warnings.append(f"{results.pending_jobs} jobs are not finished. To resume, run the same command again.")
    if results.tasks:
        notes.append(f"Metrics: {'; '.join(f'{task}: {_metric_titles(results, task)}' for task in results.tasks)}.")
    columns = [*((COLUMN_TITLES[name], "") for name in results.fact_names), *results.columns]
    rows = [_table_row(results, row) for row in results.rows]
    return Section("Results", render("race", "results", warnings=warnings, notes=notes, columns=columns, rows=rows))


def _table_row(results: RaceResults, row: ResultRow) -> dict[str, object]:
    scores = []
    for task, mode in results.columns:
        cell = results.cell(mode, row.name, task)
        scores.append((str(cell or "–"), cell is not None and cell.mean == results.modes[mode].best_mean(task)))
    facts = [format_fact(name, row.facts.get(name)) for name in results.fact_names]
    return {"name": row.name, "source": row.checkpoint_of, "facts": facts, "scores": scores}


def _metric_titles(results: RaceResults, task: str) -> str:
    return ", ".join(metric_names.display_name(name) for name in results.metrics.get(task, ()))


def _plots_section(results: RaceResults) -> Section:
    charts = []
    for mode, name in MODE_TITLES.items():
        if mode in results.modes:
            title, points = f"{name}: average score by number of parameters", _plot_points(results, mode)
            charts.append(scatter_chart(title, points, "parameters", _majority_level(results, mode)))
    caption = (
        "All models had the same pre-training budget, except those in green, which were not pre-trained. "
        "Error bars are one standard deviation over seeds."
    )
    return Section("Scores by model size", render("race", "plots", caption=caption, charts=charts))


def _spread_section(results: RaceResults) -> Section:
    """For every column, the scores of all models with their standard deviation over seeds, on one axis."""
    blocks = []
    for task, mode in results.columns:
        cells = [(row.name, cell) for row in results.rows if (cell := results.cell(mode, row.name, task))]
        sign = 1 if results.modes[mode].is_error(task) else -1  # the best first
        cells = sorted((pair for pair in cells if not math.isnan(pair[1].mean)), key=lambda pair: sign * pair[1].mean)
        blocks.append(interval_block(f"{task}, {mode}", cells, MODE_COLORS[mode]))
    return Section("Variation over seeds", render("race", "spread", caption=SPREAD_CAPTION, blocks=blocks))


def _plot_rows(results: RaceResults) -> list[PlotRow]:
    """Models with an average, sorted by the better of their two modes."""
    plot_rows = []
    for row in results.rows:
        cells = {mode: results.cell(mode, row.name, AVERAGE) for mode in results.modes}
        scores = {mode: 100 * cell.mean for mode, cell in cells.items() if cell and not math.isnan(cell.mean)}
        plot_rows += [(row.name, scores)] if scores else []
    if any(table.is_error(AVERAGE) for table in results.modes.values()):
        return sorted(plot_rows, key=lambda plot_row: min(plot_row[1].values()))
    return sorted(plot_rows, key=lambda plot_row: -max(plot_row[1].values()))


def _plot_points(results: RaceResults, mode: str) -> list[LabeledPoint]:
    points = []
    for row in results.rows:
        cell, size = results.cell(mode, row.name, AVERAGE), row.facts.get("parameters")
        if cell and size and not math.isnan(cell.mean):
            color = MODE_COLORS[mode] if row.facts.get("flops") else CONTROL_COLOR
            points.append(LabeledPoint(row.name, size, 100 * cell.mean, color, 100 * (cell.std or 0.0)))
    return points


def _majority_level(results: RaceResults, mode: str) -> tuple[str, float] | None:
    """Name and average of the majority baseline, the row without parameters."""
    for row in results.rows:
        cell = results.cell(mode, row.name, AVERAGE)
        if not row.facts.get("parameters") and cell and not math.isnan(cell.mean):
            return row.name, 100 * cell.mean
    return None
