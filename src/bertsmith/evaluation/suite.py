"""Many tasks, models and seeds in one table: the mean over seeds, how far seeds are apart, and an average of tasks."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from ..reports.charts import scale, whisker
from ..reports.html import Html, document, element, note, section, table
from . import metric_names

AVERAGE = "average"


@dataclass(frozen=True)
class Run:
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
class Fault:
    """A run that failed, and what was wrong."""

    model: str
    task: str
    seed: int
    error: str

    def __str__(self) -> str:
        return f"{self.model} on {self.task}, seed {self.seed}: {self.error}"


@dataclass(frozen=True)
class Cell:
    """A score over seeds; the deviation is that of a sample, None for a single seed."""

    mean: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        """As tables of results give it: 87.3 ± 0.4."""
        if math.isnan(self.mean):
            return "–"
        return f"{100 * self.mean:.1f}" + (f" ± {100 * self.deviation:.1f}" if self.deviation is not None else "")


@dataclass(frozen=True)
class Table:
    """What is known so far: a row a model, a column a task, and the average of tasks last."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    runs: Sequence[Run]
    faults: Sequence[Fault] = ()

    def cell(self, model: str, task: str) -> Cell | None:
        """None until a run is done; the average waits for every task, and takes the seeds that all of them have."""
        if task == AVERAGE:
            return _cell([fmean(scores) for scores in self._by_seed(model) if len(scores) == len(self.tasks)])
        return _cell([run.score for run in self.runs if (run.model, run.task) == (model, task)])

    def rows(self) -> list[list[str]]:
        """As text, with a head."""
        columns = [*self.tasks, AVERAGE]
        return [["", *columns], *([model, *(self.shown(model, one) for one in columns)] for model in self.models)]

    def shown(self, model: str, task: str) -> str:
        """A cell as text, where nothing but a fault is known, that."""
        failed = any((one.model, one.task) == (model, task) for one in self.faults)
        return str(self.cell(model, task) or ("failed" if failed else ""))

    def best(self, task: str) -> float:
        means = [cell.mean for model in self.models if (cell := self.cell(model, task)) and not math.isnan(cell.mean)]
        return max(means, default=math.nan)

    def plain(self) -> dict[str, Any]:
        """By model and task: mean, deviation and seeds; every run with all its scores; and what failed."""
        told = {m: {t: cell and {"mean": cell.mean, "deviation": cell.deviation, "seeds": cell.seeds}
                    for t in (*self.tasks, AVERAGE) for cell in (self.cell(m, t),)} for m in self.models}  # fmt: skip
        runs = [{"model": one.model, "task": one.task, "seed": one.seed, "score": one.score, "scores": one.scores}
                for one in self.runs]  # fmt: skip
        return {"table": told, "runs": runs, "faults": [asdict(one) for one in self.faults]}

    def _by_seed(self, model: str) -> list[list[float]]:
        mine = [run for run in self.runs if run.model == model]
        return [[run.score for run in mine if run.seed == seed] for seed in dict.fromkeys(run.seed for run in mine)]


def page(found: Table, left: int) -> bytes:
    """The table for people; `left` is how many runs are still to be done."""
    seeds = len({run.seed for run in found.runs})
    lead = f"{len(found.models)} models · {len(found.tasks)} tasks · {seeds} seeds · {len(found.runs)} runs"
    return document("Results of the suite", lead, [_results(found, left), _apart(found), _runs(found)])


def _results(found: Table, left: int) -> Html:
    columns = [*found.tasks, AVERAGE]
    taken = {run.task: ", ".join(metric_names.title(name) for name in run.metrics) for run in found.runs}
    rows = [[model, *(_shown(found, model, task) for task in columns)] for model in found.models]
    measured = ["measured by", *(taken.get(task, "") for task in found.tasks), "all tasks"]
    told = ("Mean over seeds and, behind ±, their deviation, times 100; the best of each column is bold. A task with several "
            "scores counts by their mean.")  # fmt: skip
    warned = [note(f"{left} runs are still to be done: run the same command again to go on.", "warning")] if left else []
    warned += [note(f"failed: {fault}", "warning") for fault in found.faults]
    return section("Results", *warned, note(told), table([*rows, measured], ["", *columns]))


def _apart(found: Table) -> Html:
    """Every task with the means of all models on one scale: what is a difference, and what is seeds."""
    cells = {(m, t): found.cell(m, t) for t in (*found.tasks, AVERAGE) for m in found.models}
    blocks = []
    for task in (*found.tasks, AVERAGE):
        mine = [(model, cell) for model in found.models if (cell := cells[model, task])]
        limits = scale([edge for _, cell in mine for edge in _edges(cell)])
        ends = element("span", *(element("span", f"{100 * edge:.4g}") for edge in limits), class_="scale")
        rows = [(model, str(cell), _arm(cell, limits)) for model, cell in mine]
        blocks.append(element("div", element("h3", task), table(rows, ("", "", ends))))
    told = "Arms are one deviation over seeds each way; where they overlap, a difference may be luck."
    return section("How far apart", note(told), element("div", *blocks, class_="pair"))


def _runs(found: Table) -> Html:
    rows = [(one.model, one.task, one.seed, ", ".join(f"{metric_names.title(n)} {metric_names.value(n, v)}" for n, v in one.scores.items()))
            for one in found.runs]  # fmt: skip
    return section("Every run", table(rows, ("model", "task", "seed", "scores")))


def _cell(scores: list[float]) -> Cell | None:
    if not scores:
        return None
    if any(map(math.isnan, scores)):
        return Cell(math.nan, None, len(scores))
    return Cell(fmean(scores), stdev(scores) if len(scores) > 1 else None, len(scores))


def _shown(found: Table, model: str, task: str) -> Html:
    cell = found.cell(model, task)
    best = cell is not None and cell.mean == found.best(task) and len(found.models) > 1
    return element("b" if best else "span", found.shown(model, task) or "–", class_="best" if best else None)


def _edges(cell: Cell) -> tuple[float, float]:
    return cell.mean - (cell.deviation or 0), cell.mean + (cell.deviation or 0)


def _arm(cell: Cell, limits: tuple[float, float]) -> Html:
    low, high = _edges(cell)
    return whisker(low, cell.mean, high, limits)
