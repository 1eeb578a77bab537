"""What is known of a run besides its log: the settings that decide what is too much and what too little."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reports.training_curves import MetricRows, read_metrics

ADAM_OPTIMIZERS = ("adamw", "bert-adam")
DEFAULT_INITIALIZER_RANGE = 0.02  # of new weights, where nothing says otherwise


@dataclass(frozen=True)
class RunSettings:
    stage: str | None = None  # pretrain, finetune, import; none while it is not written down
    recipe: dict[str, Any] | None = None
    initializer_range: float = DEFAULT_INITIALIZER_RANGE

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "RunSettings":
        """From what config.json says."""
        deviation = record.get("model", {}).get("encoder", {}).get("deviation", DEFAULT_INITIALIZER_RANGE)
        return cls(record.get("stage"), record.get("recipe"), deviation)

    @property
    def is_random_init(self) -> bool:
        """It began with random weights."""
        told = self.recipe or {}
        return bool(told.get("scratch")) if self.stage == "finetune" else not told.get("init")

    @property
    def is_pretraining(self) -> bool:
        """It learnt hidden words, as far as is known."""
        return self.stage in (None, "pretrain")

    def train_setting(self, name: str) -> Any:
        return (self.recipe or {}).get("train", {}).get(name)

    @property
    def optimizer(self) -> str:
        return str((self.train_setting("optimizer") or {}).get("kind", "adamw"))

    @property
    def objective(self) -> str | None:
        return (self.recipe or {}).get("objective", {}).get("kind") if self.stage == "pretrain" else None


Floats = NDArray[np.float64]
MLM_LOSS = "loss.words"
PSEUDO_PERPLEXITY_SPLIT = "alone"  # the trial with each word hidden alone: another question than training asks


@dataclass(frozen=True)
class TrainingLog:
    """Rows that a rollback undid count among the faults only."""

    train_rows: MetricRows
    eval_rows: dict[str, MetricRows]  # by name: valid, dev, alone
    skip_reasons: list[str]  # why updates were skipped, one each; fp16's own search for its scale is no fault
    rollbacks: int

    @cached_property
    def loss_column(self) -> str:
        """The column that is compared with what words cost: of the words alone, where the loss has other parts."""
        return MLM_LOSS if any(MLM_LOSS in row for row in self.train_rows) else "loss"

    @cached_property
    def losses(self) -> Floats:
        return self.column(self.loss_column)

    def column(self, name: str) -> Floats:
        """The numbers of the training rows that have one."""
        return np.array([row[name] for row in self.train_rows if row.get(name) is not None], float)

    @cached_property
    def steps(self) -> int:
        return max((row["step"] for row in self.train_rows), default=0)

    @cached_property
    def tokens(self) -> int:
        return max((row.get("tokens") or 0 for row in self.train_rows), default=0)

    @cached_property
    def peak_lr(self) -> float:
        """The highest of the log."""
        return float(self.column("rate").max(initial=0.0))

    @cached_property
    def lr_sum(self) -> float:
        """The learning rate summed over the steps: how far Adam can have moved a weight, at most or nearly so."""
        steps = np.diff([0, *(row["step"] for row in self.train_rows)])
        return float(sum(step * (row.get("rate") or 0.0) for step, row in zip(steps, self.train_rows, strict=True)))

    @cached_property
    def final_loss(self) -> float:
        """The loss of the last tenth of the run."""
        return float(np.median(self.losses[-smoothing_window(len(self.losses)) :])) if len(self.losses) else float("nan")

    def eval_losses(self) -> tuple[str, Floats, list[int]]:
        """Held-out losses of what is trained on, and their steps; empty if nothing was held out."""
        for name, found in self.eval_rows.items():
            if name != PSEUDO_PERPLEXITY_SPLIT:
                column = MLM_LOSS if any(MLM_LOSS in row for row in found) else "loss"
                some = [row for row in found if row.get(column) is not None]
                return name, np.array([row[column] for row in some], float), [row["step"] for row in some]
        return "", np.zeros(0), []

    def pseudo_nll(self) -> float | None:
        """The held-out loss with each word hidden alone, when it was last asked."""
        found = [row["loss"] for row in self.eval_rows.get(PSEUDO_PERPLEXITY_SPLIT, []) if row.get("loss") is not None]
        return float(found[-1]) if found else None


def smoothing_window(num_rows: int) -> int:
    """Rows that are looked at together, so that noise is not taken for news."""
    return max(1, min(num_rows, max(3, num_rows // 10)))


def read_log(folder: Path) -> TrainingLog | None:
    """None if the folder has no log, as that of an imported model, or a run that has not got so far."""
    path = folder / "metrics.jsonl"
    if not path.exists() or not path.stat().st_size:
        return None
    held = read_metrics(folder)
    trials: dict[str, MetricRows] = {}
    for row in held:
        if "trial" in row:
            trials.setdefault(row["trial"], []).append(row)
    faults, rollbacks = _read_skips_and_rollbacks(path)
    train = [row for row in held if "trial" not in row and "rate" in row]
    return TrainingLog(train, trials, faults, rollbacks)


def _read_skips_and_rollbacks(path: Path) -> tuple[list[str], int]:
    """Of all rows, those undone too: they are what a rollback is told by."""
    every: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    skipped = [str(row["skipped"]) for row in every if "skipped" in row]
    return [why for why in skipped if not why.startswith("fp16")], sum("rollback" in row for row in every)
