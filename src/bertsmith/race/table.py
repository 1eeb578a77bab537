"""What a task scores without reading: always the most frequent label, the mean, the most frequent tag."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..evaluation.suite import AVERAGE, Cell, Table
from ..reports.charts import compact
from ..tasks import Classify, Regress, Tag, TaskConfig
from ..tokenization.tokenizer import Tokenizer


def majority(task: TaskConfig, learn: Sequence[Any], dev: Sequence[Any], tokenizer: Tokenizer, length: int) -> dict[str, float]:
    """Scores on `dev` of what is most usual in `learn`; none for tasks where nothing is usual."""
    if isinstance(task, Classify) and not task.many:
        row = _shares(task.labels, [one.label for one in learn])
    elif isinstance(task, Tag):
        row = _shares(task.labels, [tag for one in learn for tag in one.tags])
    elif isinstance(task, Regress):
        row = np.array([float(np.mean([one.label for one in learn]))])
    else:
        return {}
    encoded = task.encode(dev, tokenizer, length)
    tokens = isinstance(task, Tag)
    scores = [np.tile(row, (len(ids), 1)) if tokens else row for ids in encoded.ids]
    return task.judge(task.decode(scores, encoded, dev), dev)  # type: ignore[arg-type]


def _shares(labels: Sequence[str], met: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    counts = Counter(met)
    return np.log([(counts[label] + 1e-9) / max(1, len(met)) for label in labels])


FACTS = ("parameters", "flops", "seconds", "bits_per_byte", "pseudo_bits_per_byte")
HEADS = {"parameters": "params", "flops": "FLOPs", "seconds": "seconds", "bits_per_byte": "bits/byte",
         "pseudo_bits_per_byte": "pseudo-bits/byte"}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One row; what is not known, or means nothing for it, is not among the facts."""

    name: str
    facts: dict[str, float] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    of: str | None = None  # the member whose checkpoint it takes


@dataclass(frozen=True)
class Race:
    """What is known so far; `ways` holds a table of scores for each way a member is used: frozen, tuned."""

    entries: Sequence[Entry]
    ways: dict[str, Table]
    tasks: tuple[str, ...]
    metrics: dict[str, tuple[str, ...]]
    budget: float
    left: int = 0  # runs still to be done

    def cell(self, way: str, name: str, task: str) -> Cell | None:
        return self.ways[way].cell(name, task)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(task, way), the tasks first and their average last."""
        return [(task, way) for task in (*self.tasks, AVERAGE) for way in self.ways]

    @property
    def facts(self) -> list[str]:
        """Those that some row has."""
        return [name for name in FACTS if any(name in one.facts for one in self.entries)]

    def rows(self) -> list[tuple[str, ...]]:
        """As text, with a head, for a terminal."""
        head = ("", *(HEADS[name] for name in self.facts), *(f"{task} {way}" for task, way in self.columns))
        return [head, *(self._row(one) for one in self.entries)]

    def plain(self) -> dict[str, Any]:
        told = [{"name": one.name, **({"of": one.of} if one.of else {}), **one.facts, "scores": self._scores(one.name),
                 "faults": list(one.faults)} for one in self.entries]  # fmt: skip
        runs = {way: table.plain()["runs"] for way, table in self.ways.items()}
        metrics = {task: list(names) for task, names in self.metrics.items()}
        return {"budget": self.budget, "left": self.left, "metrics": metrics, "members": told, "runs": runs}

    def _row(self, one: Entry) -> tuple[str, ...]:
        facts = [fact(name, one.facts.get(name)) for name in self.facts]
        return (one.name, *facts, *(str(self.cell(way, one.name, task) or "–") for task, way in self.columns))

    def _scores(self, name: str) -> dict[str, Any]:
        return {way: {task: _plain(self.cell(way, name, task)) for task in (*self.tasks, AVERAGE)} for way in self.ways}


def fact(name: str, value: float | None) -> str:
    """A number as a table shows it."""
    if value is None or math.isnan(value):
        return "–"
    if name in ("parameters", "seconds"):
        return compact(value)
    return scientific(value) if name == "flops" else f"{value:.3f}"


def scientific(value: float) -> str:
    """`1.2e15`; 0 as it is."""
    power = math.floor(math.log10(value)) if value > 0 else 0
    return f"{value / 10**power:.3g}e{power}" if value > 0 else "0"


def _plain(cell: Cell | None) -> dict[str, Any] | None:
    return None if cell is None else {"mean": cell.mean, "deviation": cell.deviation, "seeds": cell.seeds}
