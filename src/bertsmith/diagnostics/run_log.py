"""The log (metrics.jsonl) and the settings (config.json) of a training run, as the checks read them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading import read_json_lines
from ..reports.training_curves import MetricRows, read_metrics

ADAM_OPTIMIZERS = ("adamw", "bert-adam")
DEFAULT_INITIALIZER_RANGE = 0.02  # standard deviation of initial weights, where the config does not set it
MLM_LOSS = "mlm_loss"
TOKEN_LOSSES = (MLM_LOSS, "lm_loss")  # mean NLL of tokens: other parts of the loss cannot be compared with their entropy
PSEUDO_PERPLEXITY_SPLIT = "pseudo_perplexity"  # the split with one masked token at a time
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RunSettings:
    """The recipe of a run, as far as it is known."""

    stage: str | None = None  # pretrain, finetune, import; None while the run has not finished
    recipe: dict[str, Any] | None = None
    initializer_range: float = DEFAULT_INITIALIZER_RANGE

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "RunSettings":
        """From the content of config.json."""
        encoder = record.get("model", {}).get("encoder", {})
        return cls(record.get("stage"), record.get("recipe"), encoder.get("initializer_range", DEFAULT_INITIALIZER_RANGE))

    @property
    def is_random_init(self) -> bool:
        """The run started from random weights."""
        recipe = self.recipe or {}
        return bool(recipe.get("random_init")) if self.stage == "finetune" else not recipe.get("init")

    @property
    def is_pretraining(self) -> bool:
        """The run is, or may be, a pretraining run."""
        return self.stage in (None, "pretrain")

    def train_setting(self, name: str) -> Any:
        """The value of `train.NAME` in the recipe; None if unknown."""
        return (self.recipe or {}).get("train", {}).get(name)

    @property
    def optimizer(self) -> str:
        return str((self.train_setting("optimizer") or {}).get("kind", "adamw"))

    @property
    def objective(self) -> str | None:
        return (self.recipe or {}).get("objective", {}).get("kind") if self.stage == "pretrain" else None


@dataclass(frozen=True)
class TrainingLog:
    """Rows that a rollback undid are excluded, except from `skip_reasons` and `rollbacks`."""

    train_rows: MetricRows
    eval_rows: dict[str, MetricRows]  # by split: valid, dev, pseudo_perplexity
    skip_reasons: list[str]  # one per skipped update; fp16 loss-scale adjustments are not counted
    rollbacks: int

    @cached_property
    def loss_column(self) -> str:
        """The column with the loss of tokens: `mlm_loss` or `lm_loss`; `loss` for other objectives."""
        return _find_loss_column(self.train_rows)

    @cached_property
    def losses(self) -> Floats:
        """(rows,): training losses of `loss_column`."""
        return self.column(self.loss_column)

    def column(self, name: str) -> Floats:
        """The values of a column in the training rows that have it."""
        return np.array([row[name] for row in self.train_rows if row.get(name) is not None], float)

    @cached_property
    def steps(self) -> int:
        return max((row["step"] for row in self.train_rows), default=0)

    @cached_property
    def tokens(self) -> int:
        return max((row.get("tokens") or 0 for row in self.train_rows), default=0)

    @cached_property
    def peak_lr(self) -> float:
        """The highest learning rate in the log."""
        return float(self.column("learning_rate").max(initial=0.0))

    @cached_property
    def lr_sum(self) -> float:
        """Sum of the learning rate over steps: about the largest change of a weight that Adam can have made."""
        steps = np.diff([0, *(row["step"] for row in self.train_rows)])
        return float(sum(step * (row.get("learning_rate") or 0.0) for step, row in zip(steps, self.train_rows, strict=True)))

    @cached_property
    def final_loss(self) -> float:
        """Median training loss of the last tenth of the rows."""
        return float(np.median(self.losses[-smoothing_window(len(self.losses)) :])) if len(self.losses) else float("nan")

    def eval_losses(self) -> tuple[str, Floats, list[int]]:
        """(split, losses, steps) of the validation split; empty if there is none."""
        for name, all_rows in self.eval_rows.items():
            if name != PSEUDO_PERPLEXITY_SPLIT:
                column = _find_loss_column(all_rows)
                rows = [row for row in all_rows if row.get(column) is not None]
                return name, np.array([row[column] for row in rows], float), [row["step"] for row in rows]
        return "", np.zeros(0), []

    def pseudo_nll(self) -> float | None:
        """The latest pseudo-log-likelihood loss: NLL per token, each token masked on its own."""
        losses = [row["loss"] for row in self.eval_rows.get(PSEUDO_PERPLEXITY_SPLIT, []) if row.get("loss") is not None]
        return float(losses[-1]) if losses else None


def smoothing_window(num_rows: int) -> int:
    """Number of rows to smooth over: a tenth, at least 3."""
    return max(1, min(num_rows, max(3, num_rows // 10)))


def read_log(folder: Path) -> TrainingLog | None:
    """None if the folder has no log: an imported model, or a run that has not logged yet."""
    path = folder / "metrics.jsonl"
    if not path.exists() or not path.stat().st_size:
        return None
    rows = read_metrics(folder)
    eval_rows: dict[str, MetricRows] = {}
    for row in rows:
        if "split" in row:
            eval_rows.setdefault(row["split"], []).append(row)
    skip_reasons, rollbacks = _read_skips_and_rollbacks(path)
    train_rows = [row for row in rows if "split" not in row and "learning_rate" in row]
    return TrainingLog(train_rows, eval_rows, skip_reasons, rollbacks)


def _find_loss_column(rows: MetricRows) -> str:
    return next((name for name in TOKEN_LOSSES if any(name in row for row in rows)), "loss")


def _read_skips_and_rollbacks(path: Path) -> tuple[list[str], int]:
    """(skip reasons, number of rollbacks) of all rows, including those that a rollback undid."""
    rows: list[dict[str, Any]] = [row for _, row in read_json_lines(path)]  # as `read_metrics` has checked
    reasons = [str(row["skip_reason"]) for row in rows if "skip_reason" in row]
    return [reason for reason in reasons if not reason.startswith("fp16")], sum("rollback_to" in row for row in rows)
