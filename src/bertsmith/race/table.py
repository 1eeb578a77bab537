"""What a task scores without reading: always the most frequent label, the mean, the most frequent tag."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..evaluation.suite import AVERAGE, ScoreCell, SuiteTable
from ..reports.charts import format_compact
from ..tasks import TaskConfig, TextClassification, TextRegression, TokenClassification
from ..tokenization.tokenizer import Tokenizer


def score_majority_baseline(
    task: TaskConfig, train: Sequence[Any], dev: Sequence[Any], tokenizer: Tokenizer, length: int
) -> dict[str, float]:
    """Scores on `dev` of what is most usual in `learn`; none for tasks where nothing is usual."""
    if isinstance(task, TextClassification) and not task.many:
        row = _log_frequencies(task.labels, [one.label for one in train])
    elif isinstance(task, TokenClassification):
        row = _log_frequencies(task.labels, [tag for one in train for tag in one.tags])
    elif isinstance(task, TextRegression):
        row = np.array([float(np.mean([one.label for one in train]))])
    else:
        return {}
    encoded = task.encode(dev, tokenizer, length)
    tokens = isinstance(task, TokenClassification)
    scores = [np.tile(row, (len(ids), 1)) if tokens else row for ids in encoded.input_ids]
    return task.compute_metrics(task.decode(scores, encoded, dev), dev)  # type: ignore[arg-type]


def _log_frequencies(labels: Sequence[str], observed: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    counts = Counter(observed)
    return np.log([(counts[label] + 1e-9) / max(1, len(observed)) for label in labels])


FACT_NAMES = ("parameters", "flops", "seconds", "bits_per_byte", "pseudo_bits_per_byte")
COLUMN_TITLES = {"parameters": "params", "flops": "FLOPs", "seconds": "seconds", "bits_per_byte": "bits/byte",
         "pseudo_bits_per_byte": "pseudo-bits/byte"}  # fmt: skip


@dataclass(frozen=True)
class ResultRow:
    """One row; what is not known, or means nothing for it, is not among the facts."""

    name: str
    facts: dict[str, float] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    checkpoint_of: str | None = None  # the member whose checkpoint it takes


@dataclass(frozen=True)
class RaceResults:
    """What is known so far; `ways` holds a table of scores for each way a member is used: frozen, tuned."""

    rows: Sequence[ResultRow]
    modes: dict[str, SuiteTable]
    tasks: tuple[str, ...]
    metrics: dict[str, tuple[str, ...]]
    budget: float
    pending_jobs: int = 0  # runs still to be done

    def cell(self, mode: str, name: str, task: str) -> ScoreCell | None:
        return self.modes[mode].cell(name, task)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(task, way), the tasks first and their average last."""
        return [(task, way) for task in (*self.tasks, AVERAGE) for way in self.modes]

    @property
    def fact_names(self) -> list[str]:
        """Those that some row has."""
        return [name for name in FACT_NAMES if any(name in one.facts for one in self.rows)]

    def text_rows(self) -> list[tuple[str, ...]]:
        """As text, with a head, for a terminal."""
        head = ("", *(COLUMN_TITLES[name] for name in self.fact_names), *(f"{task} {way}" for task, way in self.columns))
        return [head, *(self._text_row(one) for one in self.rows)]

    def to_dict(self) -> dict[str, Any]:
        told = [{"name": one.name, **({"of": one.checkpoint_of} if one.checkpoint_of else {}), **one.facts, "scores": self._scores(one.name),
                 "faults": list(one.errors)} for one in self.rows]  # fmt: skip
        runs = {way: table.to_dict()["runs"] for way, table in self.modes.items()}
        metrics = {task: list(names) for task, names in self.metrics.items()}
        return {"budget": self.budget, "left": self.pending_jobs, "metrics": metrics, "members": told, "runs": runs}

    def _text_row(self, row: ResultRow) -> tuple[str, ...]:
        facts = [format_fact(name, row.facts.get(name)) for name in self.fact_names]
        return (row.name, *facts, *(str(self.cell(way, row.name, task) or "–") for task, way in self.columns))

    def _scores(self, name: str) -> dict[str, Any]:
        return {way: {task: _cell_to_dict(self.cell(way, name, task)) for task in (*self.tasks, AVERAGE)} for way in self.modes}


def format_fact(name: str, value: float | None) -> str:
    """A number as a table shows it."""
    if value is None or math.isnan(value):
        return "–"
    if name in ("parameters", "seconds"):
        return format_compact(value)
    return format_scientific(value) if name == "flops" else f"{value:.3f}"


def format_scientific(value: float) -> str:
    """`1.2e15`; 0 as it is."""
    power = math.floor(math.log10(value)) if value > 0 else 0
    return f"{value / 10**power:.3g}e{power}" if value > 0 else "0"


def _cell_to_dict(cell: ScoreCell | None) -> dict[str, Any] | None:
    return None if cell is None else {"mean": cell.mean, "deviation": cell.std, "seeds": cell.num_seeds}
