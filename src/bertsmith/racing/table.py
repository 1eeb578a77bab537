"""Results of a race as a table (facts and scores of each member), and the majority baseline of its tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..evaluation.suite import AVERAGE, ScoreCell, SuiteTable
from ..reports.charts import format_compact
from ..tasks import Task
from ..tokenization.tokenizer import Tokenizer

FACT_NAMES = ("parameters", "flops", "seconds", "bits_per_byte", "pseudo_bits_per_byte")
COLUMN_TITLES = {"parameters": "params", "flops": "FLOPs", "seconds": "seconds", "bits_per_byte": "bits/byte",
         "pseudo_bits_per_byte": "pseudo-bits/byte"}  # fmt: skip


@dataclass(frozen=True)
class ResultRow:
    """A member's row; facts that are unknown or do not apply are absent."""

    name: str
    facts: dict[str, float] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    checkpoint_of: str | None = None  # the member whose checkpoint it uses


@dataclass(frozen=True)
class RaceResults:
    """Results so far; `modes` has a table of scores for each mode: frozen, tuned."""

    rows: Sequence[ResultRow]
    modes: dict[str, SuiteTable]
    tasks: tuple[str, ...]
    metrics: dict[str, tuple[str, ...]]
    budget: float
    pending_jobs: int = 0  # jobs that are not finished

    def cell(self, mode: str, name: str, task: str) -> ScoreCell | None:
        return self.modes[mode].cell(name, task)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(task, mode), the tasks in order and their average last."""
        return [(task, mode) for task in (*self.tasks, AVERAGE) for mode in self.modes]

    @property
    def fact_names(self) -> list[str]:
        """Facts that at least one row has."""
        return [name for name in FACT_NAMES if any(name in row.facts for row in self.rows)]

    def text_rows(self) -> list[tuple[str, ...]]:
        """Header and rows as strings, for a terminal."""
        header = ("", *(COLUMN_TITLES[name] for name in self.fact_names), *(f"{task} {mode}" for task, mode in self.columns))
        return [header, *(self._text_row(row) for row in self.rows)]

    def to_dict(self) -> dict[str, Any]:
        members = [
            {"name": row.name, **({"checkpoint_of": row.checkpoint_of} if row.checkpoint_of else {}), **row.facts,
             "scores": self._scores(row.name), "errors": list(row.errors)}
            for row in self.rows
        ]  # fmt: skip
        runs = {mode: table.to_dict()["runs"] for mode, table in self.modes.items()}
        metrics = {task: list(names) for task, names in self.metrics.items()}
        return {
            "budget_flops": self.budget,
            "num_pending": self.pending_jobs,
            "metrics": metrics,
            "members": members,
            "runs": runs,
        }

    def _text_row(self, row: ResultRow) -> tuple[str, ...]:
        facts = [format_fact(name, row.facts.get(name)) for name in self.fact_names]
        return (row.name, *facts, *(str(self.cell(mode, row.name, task) or "–") for task, mode in self.columns))

    def _scores(self, name: str) -> dict[str, Any]:
        return {
            mode: {task: _cell_to_dict(self.cell(mode, name, task)) for task in (*self.tasks, AVERAGE)} for mode in self.modes
        }


def format_fact(name: str, value: float | None) -> str:
    """A fact as the table shows it."""
    if value is None or math.isnan(value):
        return "–"
    if name in ("parameters", "seconds"):
        return format_compact(value)
    return format_scientific(value) if name == "flops" else f"{value:.3f}"


def format_scientific(value: float) -> str:
    """Three significant digits, as in `1.2e15`; `0` for 0."""
    exponent = math.floor(math.log10(value)) if value > 0 else 0
    return f"{value / 10**exponent:.3g}e{exponent}" if value > 0 else "0"


def _cell_to_dict(cell: ScoreCell | None) -> dict[str, Any] | None:
    return None if cell is None else {"mean": cell.mean, "std": cell.std, "num_seeds": cell.num_seeds}


def score_majority_baseline(
    task: Task, train: Sequence[Any], dev: Sequence[Any], tokenizer: Tokenizer, length: int
) -> dict[str, float]:
    """Dev scores of the majority baseline: the most frequent label or tag, or the mean, of `train`; {} for other tasks."""
    if (output := task.majority_outputs(train)) is None:
        return {}
    encoded = task.encode(dev, tokenizer, length)
    scores = [np.tile(output, (len(ids), 1)) if task.head_type == "token" else output for ids in encoded.input_ids]
    return task.compute_metrics(task.decode(scores, encoded, dev), dev)
