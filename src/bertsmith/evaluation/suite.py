"""Results of a suite of models, tasks and seeds: mean and standard deviation over seeds, average over tasks, HTML page."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from ..reports.charts import compute_axis_range, whisker
from ..reports.html import Section, render, render_document
from .metric_names import display_name, format_score

AVERAGE = "average"
SPREAD_CAPTION = "Mean and standard deviation over seeds. Where the intervals overlap, a difference may be due to the seed."


@dataclass(frozen=True)
class SuiteRun:
    """One model fine-tuned on one task with one seed; `score` is the mean of its `metrics`.

    lower_is_better: the metrics that are errors.
    """

    model: str
    task: str
    seed: int
    scores: dict[str, float]
    metrics: tuple[str, ...]
    lower_is_better: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        return fmean(self.scores[name] for name in self.metrics)


@dataclass(frozen=True)
class SuiteFailure:
    """A run that failed, with its error message."""

    model: str
    task: str
    seed: int
    error: str

    def __str__(self) -> str:
        return f"{self.model} on {self.task}, seed {self.seed}: {self.error}"


@dataclass(frozen=True)
class ScoreCell:
    """Mean and sample standard deviation of a score over seeds; `std` is None for a single seed."""

    mean: float
    std: float | None
    num_seeds: int

    def __str__(self) -> str:
        """Times 100, as in published tables: 87.3 ± 0.4."""
        if math.isnan(self.mean):
            return "–"
        return f"{100 * self.mean:.1f}" + (f" ± {100 * self.std:.1f}" if self.std is not None else "")


@dataclass(frozen=True)
class SuiteTable:
    """The finished runs: one row per model, one column per task, and the average over tasks last."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    runs: Sequence[SuiteRun]
    failures: Sequence[SuiteFailure] = ()

    def cell(self, model: str, task: str) -> ScoreCell | None:
        """None until a run is done; the average is over the seeds for which every task is done."""
        if task == AVERAGE:
            return _aggregate_seeds([fmean(scores) for scores in self._scores_by_seed(model) if len(scores) == len(self.tasks)])
        return _aggregate_seeds([run.score for run in self.runs if (run.model, run.task) == (model, task)])

    def rows(self) -> list[list[str]]:
        """All cells as text, with a header row."""
        columns = [*self.tasks, AVERAGE]
        return [["", *columns], *([model, *(self.format_cell(model, task) for task in columns)] for model in self.models)]

    def format_cell(self, model: str, task: str) -> str:
        """A cell as text: `87.3 ± 0.4`, `failed`, or empty while its runs are pending."""
        failed = any((failure.model, failure.task) == (model, task) for failure in self.failures)
        return str(self.cell(model, task) or ("failed" if failed else ""))

    def best_mean(self, task: str) -> float:
        """The best mean in a column: the lowest of errors; NaN for an empty column, or one of scores and errors together."""
        means = [cell.mean for model in self.models if (cell := self.cell(model, task)) and not math.isnan(cell.mean)]
        directions = self._directions(task)
        if len(directions) > 1:
            return math.nan
        return (min if self.is_error(task) else max)(means, default=math.nan)

    def is_error(self, task: str) -> bool:
        """Whether lower is better in a column."""
        return self._directions(task) == {True}

    def _directions(self, task: str) -> set[bool]:
        """Whether lower is better, of the metrics of a column."""
        errors = {(run.task, name) for run in self.runs for name in run.lower_is_better}
        return {(run.task, name) in errors for run in self.runs if task in (run.task, AVERAGE) for name in run.metrics}

    def to_dict(self) -> dict[str, Any]:
        """For scores.json: mean, standard deviation and number of seeds by model and task; all runs; all failures."""
        cells = {m: {t: cell and {"mean": cell.mean, "std": cell.std, "num_seeds": cell.num_seeds}
                     for t in (*self.tasks, AVERAGE) for cell in (self.cell(m, t),)} for m in self.models}  # fmt: skip
        runs = [{"model": run.model, "task": run.task, "seed": run.seed, "score": run.score, "scores": run.scores}
                for run in self.runs]  # fmt: skip
        return {"table": cells, "runs": runs, "failures": [asdict(failure) for failure in self.failures]}

    def _scores_by_seed(self, model: str) -> list[list[float]]:
        """One list per seed: the scores of all finished tasks."""
        runs = [run for run in self.runs if run.model == model]
        return [[run.score for run in runs if run.seed == seed] for seed in dict.fromkeys(run.seed for run in runs)]


def render_page(results: SuiteTable, num_pending: int) -> bytes:
    """The HTML report; `num_pending` is the number of runs that are not finished."""
    seeds = len({run.seed for run in results.runs})
    lead = f"{len(results.models)} models · {len(results.tasks)} tasks · {seeds} seeds · {len(results.runs)} runs"
    return render_document(
        "Suite results", lead, [_results_section(results, num_pending), _spread_section(results), _runs_section(results)]
    )


def _results_section(results: SuiteTable, num_pending: int) -> Section:
    columns = [*results.tasks, AVERAGE]
    metrics = {run.task: ", ".join(display_name(name) for name in run.metrics) for run in results.runs}
    rows = []
    for model in results.models:
        cells = [(results.format_cell(model, task) or "–", _is_best(results, model, task)) for task in columns]
        rows.append((model, cells))
    caption = ("Mean ± standard deviation over seeds, times 100; the best score of each column is in bold. "
               "The score of a task with several metrics is their mean.")  # fmt: skip
    pending = f"{num_pending} runs are not finished. To resume, run the same command again."
    warnings = [*([pending] if num_pending else []), *(f"failed: {failure}" for failure in results.failures)]
    metric_row = [*(metrics.get(task, "") for task in results.tasks), "mean over tasks"]
    body = render("suite", "results", warnings=warnings, caption=caption, columns=columns, rows=rows, metrics=metric_row)
    return Section("Results", body)


def _spread_section(results: SuiteTable) -> Section:
    """Mean and standard deviation over seeds of all models on one scale per task, to compare differences with seed noise."""
    blocks = []
    for task in (*results.tasks, AVERAGE):
        cells = [(model, cell) for model in results.models if (cell := results.cell(model, task))]
        blocks.append(interval_block(task, cells))
    return Section("Variation over seeds", render("suite", "spread", caption=SPREAD_CAPTION, blocks=blocks))


def _runs_section(results: SuiteTable) -> Section:
    rows = []
    for run in results.runs:
        scores = ", ".join(f"{display_name(name)} {format_score(name, value)}" for name, value in run.scores.items())
        rows.append((run.model, run.task, run.seed, scores))
    return Section("All runs", render("suite", "runs", rows=rows))


def interval_block(title: str, cells: Sequence[tuple[str, ScoreCell]], color: str = "one") -> tuple[str, list[str], list[Any]]:
    """(title, ends of the axis, rows of name, score and chart) for the template: (name, cell) pairs on one scale."""
    ranges = [(cell.mean - (cell.std or 0), cell.mean + (cell.std or 0)) for _, cell in cells]
    limits = compute_axis_range([edge for bounds in ranges for edge in bounds])
    rows = [
        (name, str(cell), whisker(low, cell.mean, high, limits, color=color))
        for (name, cell), (low, high) in zip(cells, ranges, strict=True)
    ]
    return title, [f"{100 * edge:.4g}" for edge in limits], rows


def _aggregate_seeds(scores: list[float]) -> ScoreCell | None:
    if not scores:
        return None
    if any(map(math.isnan, scores)):
        return ScoreCell(math.nan, None, len(scores))
    return ScoreCell(fmean(scores), stdev(scores) if len(scores) > 1 else None, len(scores))


def _is_best(results: SuiteTable, model: str, task: str) -> bool:
    cell = results.cell(model, task)
    return cell is not None and cell.mean == results.best_mean(task) and len(results.models) > 1
