"""Many tasks, models and seeds in one table: the mean over seeds, how far seeds are apart, and an average of tasks."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from ..reports.charts import compute_axis_range, whisker
from ..reports.html import Html, element, note, render_document, section, table
from . import metric_names

AVERAGE = "average"


@dataclass(frozen=True)
class SuiteRun:
    """One model taught one task with one seed; `metrics` are those of its scores that the table takes, averaged."""

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
    """A run that failed, and what was wrong."""

    model: str
    task: str
    seed: int
    error: str

    def __str__(self) -> str:
        return f"{self.model} on {self.task}, seed {self.seed}: {self.error}"


@dataclass(frozen=True)
class ScoreCell:
    """A score over seeds; the deviation is that of a sample, None for a single seed."""

    mean: float
    std: float | None
    num_seeds: int

    def __str__(self) -> str:
        """As tables of results give it: 87.3 ± 0.4."""
        if math.isnan(self.mean):
            return "–"
        return f"{100 * self.mean:.1f}" + (f" ± {100 * self.std:.1f}" if self.std is not None else "")


@dataclass(frozen=True)
class SuiteTable:
    """What is known so far: a row a model, a column a task, and the average of tasks last."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    runs: Sequence[SuiteRun]
    failures: Sequence[SuiteFailure] = ()

    def cell(self, model: str, task: str) -> ScoreCell | None:
        """None until a run is done; the average waits for every task, and takes the seeds that all of them have."""
        if task == AVERAGE:
            return _aggregate_seeds([fmean(scores) for scores in self._scores_by_seed(model) if len(scores) == len(self.tasks)])
        return _aggregate_seeds([run.score for run in self.runs if (run.model, run.task) == (model, task)])

    def rows(self) -> list[list[str]]:
        """As text, with a head."""
        columns = [*self.tasks, AVERAGE]
        return [["", *columns], *([model, *(self.format_cell(model, one) for one in columns)] for model in self.models)]

    def format_cell(self, model: str, task: str) -> str:
        """A cell as text, where nothing but a fault is known, that."""
        failed = any((one.model, one.task) == (model, task) for one in self.failures)
        return str(self.cell(model, task) or ("failed" if failed else ""))

    def best_mean(self, task: str) -> float:
        means = [cell.mean for model in self.models if (cell := self.cell(model, task)) and not math.isnan(cell.mean)]
        return max(means, default=math.nan)

    def to_dict(self) -> dict[str, Any]:
        """By model and task: mean, deviation and seeds; every run with all its scores; and what failed."""
        told = {m: {t: cell and {"mean": cell.mean, "deviation": cell.std, "seeds": cell.num_seeds}
                    for t in (*self.tasks, AVERAGE) for cell in (self.cell(m, t),)} for m in self.models}  # fmt: skip
        runs = [{"model": one.model, "task": one.task, "seed": one.seed, "score": one.score, "scores": one.scores}
                for one in self.runs]  # fmt: skip
        return {"table": told, "runs": runs, "faults": [asdict(one) for one in self.failures]}

    def _scores_by_seed(self, model: str) -> list[list[float]]:
        mine = [run for run in self.runs if run.model == model]
        return [[run.score for run in mine if run.seed == seed] for seed in dict.fromkeys(run.seed for run in mine)]


def render_page(results: SuiteTable, num_pending: int) -> bytes:
    """The table for people; `left` is how many runs are still to be done."""
    seeds = len({run.seed for run in results.runs})
    lead = f"{len(results.models)} models · {len(results.tasks)} tasks · {seeds} seeds · {len(results.runs)} runs"
    return render_document(
        "Results of the suite", lead, [_results_section(results, num_pending), _spread_section(results), _runs_section(results)]
    )


def _results_section(results: SuiteTable, num_pending: int) -> Html:
    columns = [*results.tasks, AVERAGE]
    taken = {run.task: ", ".join(metric_names.display_name(name) for name in run.metrics) for run in results.runs}
    rows = [[model, *(_render_cell(results, model, task) for task in columns)] for model in results.models]
    measured = ["measured by", *(taken.get(task, "") for task in results.tasks), "all tasks"]
    told = ("Mean over seeds and, behind ±, their deviation, times 100; the best of each column is bold. A task with several "
            "scores counts by their mean.")  # fmt: skip
    warned = (
        [note(f"{num_pending} runs are still to be done: run the same command again to go on.", "warning")]
        if num_pending
        else []
    )
    warned += [note(f"failed: {fault}", "warning") for fault in results.failures]
    return section("Results", *warned, note(told), table([*rows, measured], ["", *columns]))


def _spread_section(results: SuiteTable) -> Html:
    """Every task with the means of all models on one scale: what is a difference, and what is seeds."""
    cells = {(m, t): results.cell(m, t) for t in (*results.tasks, AVERAGE) for m in results.models}
    blocks = []
    for task in (*results.tasks, AVERAGE):
        mine = [(model, cell) for model in results.models if (cell := cells[model, task])]
        limits = compute_axis_range([edge for _, cell in mine for edge in _std_range(cell)])
        ends = element("span", *(element("span", f"{100 * edge:.4g}") for edge in limits), class_="scale")
        rows = [(model, str(cell), _render_whisker(cell, limits)) for model, cell in mine]
        blocks.append(element("div", element("h3", task), table(rows, ("", "", ends))))
    told = "Arms are one deviation over seeds each way; where they overlap, a difference may be luck."
    return section("How far apart", note(told), element("div", *blocks, class_="pair"))


def _runs_section(results: SuiteTable) -> Html:
    rows = [(one.model, one.task, one.seed, ", ".join(f"{metric_names.display_name(n)} {metric_names.format_score(n, v)}" for n, v in one.scores.items()))
            for one in results.runs]  # fmt: skip
    return section("Every run", table(rows, ("model", "task", "seed", "scores")))


def _aggregate_seeds(scores: list[float]) -> ScoreCell | None:
    if not scores:
        return None
    if any(map(math.isnan, scores)):
        return ScoreCell(math.nan, None, len(scores))
    return ScoreCell(fmean(scores), stdev(scores) if len(scores) > 1 else None, len(scores))


def _render_cell(results: SuiteTable, model: str, task: str) -> Html:
    cell = results.cell(model, task)
    best = cell is not None and cell.mean == results.best_mean(task) and len(results.models) > 1
    return element("b" if best else "span", results.format_cell(model, task) or "–", class_="best" if best else None)


def _std_range(cell: ScoreCell) -> tuple[float, float]:
    return cell.mean - (cell.std or 0), cell.mean + (cell.std or 0)


def _render_whisker(cell: ScoreCell, limits: tuple[float, float]) -> Html:
    low, high = _std_range(cell)
    return whisker(low, cell.mean, high, limits)
