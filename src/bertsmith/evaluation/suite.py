"""Results of a suite of models, tasks and seeds: mean and standard deviation over seeds, average over tasks, HTML page."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from ..reports.charts import compute_axis_range, whisker
from ..reports.html import Html, element, note, render_document, section, table
from .metric_names import display_name, format_score

AVERAGE = "average"


@dataclass(frozen=True)
class SuiteRun:
    """One model fine-tuned on one task with one seed; `score` is the mean of its `metrics`."""

    model: str
    task: str
    seed: int
    scores: dict[str, float]
    metrics: tuple[str, ...]

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
        """The highest mean in a column; NaN for an empty one."""
        means = [cell.mean for model in self.models if (cell := self.cell(model, task)) and not math.isnan(cell.mean)]
        return max(means, default=math.nan)

    def to_dict(self) -> dict[str, Any]:
        """For scores.json: mean, deviation and number of seeds by model and task; all runs with all scores; all failures."""
        cells = {m: {t: cell and {"mean": cell.mean, "deviation": cell.std, "seeds": cell.num_seeds}
                     for t in (*self.tasks, AVERAGE) for cell in (self.cell(m, t),)} for m in self.models}  # fmt: skip
        runs = [{"model": run.model, "task": run.task, "seed": run.seed, "score": run.score, "scores": run.scores}
                for run in self.runs]  # fmt: skip
        return {"table": cells, "runs": runs, "faults": [asdict(failure) for failure in self.failures]}

    def _scores_by_seed(self, model: str) -> list[list[float]]:
        """One list per seed: the scores of all finished tasks."""
        runs = [run for run in self.runs if run.model == model]
        return [[run.score for run in runs if run.seed == seed] for seed in dict.fromkeys(run.seed for run in runs)]


def render_page(results: SuiteTable, num_pending: int) -> bytes:
    """The HTML report; `num_pending` is the number of runs that are still to be done."""
    seeds = len({run.seed for run in results.runs})
    lead = f"{len(results.models)} models · {len(results.tasks)} tasks · {seeds} seeds · {len(results.runs)} runs"
    return render_document(
        "Results of the suite", lead, [_results_section(results, num_pending), _spread_section(results), _runs_section(results)]
    )


def _results_section(results: SuiteTable, num_pending: int) -> Html:
    columns = [*results.tasks, AVERAGE]
    metrics = {run.task: ", ".join(display_name(name) for name in run.metrics) for run in results.runs}
    rows = [[model, *(_render_cell(results, model, task) for task in columns)] for model in results.models]
    metrics_row = ["measured by", *(metrics.get(task, "") for task in results.tasks), "all tasks"]
    caption = ("Mean over seeds and, behind ±, their deviation, times 100; the best of each column is bold. "
               "A task with several scores counts by their mean.")  # fmt: skip
    warnings = (
        [note(f"{num_pending} runs are still to be done: run the same command again to go on.", "warning")]
        if num_pending
        else []
    )
    warnings += [note(f"failed: {failure}", "warning") for failure in results.failures]
    return section("Results", *warnings, note(caption), table([*rows, metrics_row], ["", *columns]))


def _spread_section(results: SuiteTable) -> Html:
    """Mean and standard deviation over seeds of all models on one scale per task, to compare differences with seed noise."""
    cells = {(m, t): results.cell(m, t) for t in (*results.tasks, AVERAGE) for m in results.models}
    blocks = []
    for task in (*results.tasks, AVERAGE):
        column = [(model, cell) for model in results.models if (cell := cells[model, task])]
        limits = compute_axis_range([edge for _, cell in column for edge in _std_range(cell)])
        scale = element("span", *(element("span", f"{100 * edge:.4g}") for edge in limits), class_="scale")
        rows = [(model, str(cell), _render_whisker(cell, limits)) for model, cell in column]
        blocks.append(element("div", element("h3", task), table(rows, ("", "", scale))))
    caption = "Arms are one deviation over seeds each way; where they overlap, a difference may be luck."
    return section("How far apart", note(caption), element("div", *blocks, class_="pair"))


def _runs_section(results: SuiteTable) -> Html:
    rows = []
    for run in results.runs:
        scores = ", ".join(f"{display_name(name)} {format_score(name, value)}" for name, value in run.scores.items())
        rows.append((run.model, run.task, run.seed, scores))
    return section("Every run", table(rows, ("model", "task", "seed", "scores")))


def _aggregate_seeds(scores: list[float]) -> ScoreCell | None:
    if not scores:
        return None
    if any(map(math.isnan, scores)):
        return ScoreCell(math.nan, None, len(scores))
    return ScoreCell(fmean(scores), stdev(scores) if len(scores) > 1 else None, len(scores))


def _render_cell(results: SuiteTable, model: str, task: str) -> Html:
    cell = results.cell(model, task)
    is_best = cell is not None and cell.mean == results.best_mean(task) and len(results.models) > 1
    return element("b" if is_best else "span", results.format_cell(model, task) or "–", class_="best" if is_best else None)


def _std_range(cell: ScoreCell) -> tuple[float, float]:
    return cell.mean - (cell.std or 0), cell.mean + (cell.std or 0)


def _render_whisker(cell: ScoreCell, limits: tuple[float, float]) -> Html:
    low, high = _std_range(cell)
    return whisker(low, cell.mean, high, limits)
