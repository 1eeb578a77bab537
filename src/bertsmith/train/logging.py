"""Metrics of training and how they are shown.

- MetricSums, DeviceMetricSums: sums and counts by metric name, on the host and on the device
- MetricsLogger, TensorBoardLogger: metrics.jsonl and TensorBoard events
- ProgressDisplay: progress bar, or a line every 30 seconds without a terminal
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..console import escape_controls, print_line
from ..errors import UserError
from ..reading import open_regular
from ..writing import name_in_errors, open_own, write_atomic
from .objective import Batch, Loss

LOSS_SUFFIX = "_loss"  # of the metric of each part of the loss: mlm_loss, nsp_loss


class MetricSums:
    """(sum, count) by metric name, on the host. Sums can be added over steps and ranks; means could not."""

    def __init__(self, sums: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.sums: dict[str, tuple[float, float]] = {name: (total, count) for name, (total, count) in (sums or {}).items()}

    def add(self, other: "MetricSums") -> None:
        for name, (total, count) in other.sums.items():
            old_total, old_count = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (old_total + total, old_count + count)

    def drop_nonfinite(self) -> "MetricSums":
        """The same without entries that hold NaN or infinity."""
        return MetricSums({name: pair for name, pair in self.sums.items() if all(map(math.isfinite, pair))})

    def means(self) -> dict[str, float]:
        """sum / count of each metric with a count above 0; `loss`, the sum of the parts of the loss, comes first."""
        means = {name: total / count for name, (total, count) in self.sums.items() if count}
        parts = list_losses(means)
        return {"loss": sum(means[name] for name in parts), **means} if parts else means


def list_losses(names: Iterable[str]) -> list[str]:
    """The names of losses among those of metrics: `loss` and its parts."""
    return [name for name in names if name == "loss" or name.endswith(LOSS_SUFFIX)]


class DeviceMetricSums:
    """(sum, count) by metric name as scalars on the device, added up without synchronizing."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        old_total, old_count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (old_total + _to_float64(total), old_count + _to_float64(count))

    def add_loss(self, loss: Loss, batch: Batch[Any]) -> None:
        """Adds the parts of the loss, by their target counts, and its metrics."""
        for name, part in loss.parts.items():
            self.add(name + LOSS_SUFFIX, part, batch.target_counts[name])
        for name, (total, count) in loss.metrics.items():
            self.add(name, total, count)

    def to_host(self) -> MetricSums:
        """Copies everything to the host with one synchronization."""
        floats = iter(_fetch_floats([number for pair in self._sums.values() for number in pair]))
        return MetricSums({name: (next(floats), next(floats)) for name in self._sums})


def _to_float64(value: Tensor | float) -> Tensor | float:
    return value.detach().double().reshape(()) if isinstance(value, Tensor) else value


def _fetch_floats(values: list[Tensor | float]) -> list[float]:
    tensors = [value for value in values if isinstance(value, Tensor)]
    device = next((value.device for value in tensors if value.is_cuda), torch.device("cpu"))
    floats = iter(torch.stack([value.to(device) for value in tensors]).tolist()) if tensors else iter(())
    return [next(floats) if isinstance(value, Tensor) else float(value) for value in values]


class MetricsLogger:
    """Appends rows to metrics.jsonl, and to TensorBoard if requested; `enabled` is False on all ranks but 0."""

    def __init__(self, folder: Path, enabled: bool = True, tensorboard: bool = False) -> None:
        self.path, self._enabled = folder / "metrics.jsonl", enabled
        self._tensorboard = TensorBoardLogger(folder / "tensorboard") if tensorboard and enabled else None

    def log(self, step: int, **values: Any) -> None:
        if not self._enabled:
            return
        values = {name: None if _is_nonfinite(value) else value for name, value in values.items()}
        with name_in_errors(self.path), open_own(self.path, "a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **values}, ensure_ascii=False) + "\n")
        if self._tensorboard:
            self._tensorboard.add(step, values)

    def flush(self) -> int:
        """Size of metrics.jsonl in bytes after fsync; a checkpoint stores it so that `truncate` can go back to it."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def truncate(self, size: int, step: int) -> None:
        """Drops the rows after the first `size` bytes: a resumed run writes them again."""
        if not self._enabled:
            return
        if self._tensorboard:
            self._tensorboard.start(step)
        if self.path.exists():
            with open_regular(self.path) as file:
                data = file.read(min(size, os.fstat(file.fileno()).st_size))
            # only complete rows, even if the file is shorter than `size`
            write_atomic(self.path, data[: data.rfind(b"\n") + 1])


class TensorBoardLogger:
    """Writes the numbers of each row as TensorBoard scalars; on resume, `start` purges the steps that are repeated."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "train.tensorboard=true needs the tensorboard package: pip install bertsmith[tensorboard]"
            ) from None
        self._folder, self._writer_class = folder, SummaryWriter
        self._writer: Any = None

    def start(self, step: int) -> None:
        self._writer = self._writer_class(str(self._folder), purge_step=step + 1)

    def add(self, step: int, values: dict[str, Any]) -> None:
        assert self._writer, "call start() first"
        prefix = values.get("split", "train")
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{prefix}/{name}", value, step)
        self._writer.flush()


def _is_nonfinite(value: Any) -> bool:
    """True for NaN and infinity, which JSON cannot represent."""
    return isinstance(value, float) and not math.isfinite(value)


FIRST_LINE_AFTER, LINE_INTERVAL = 10.0, 30.0  # seconds, when stderr is not a terminal


class ProgressDisplay:
    """Messages and progress on stderr. `info` respects `quiet`, `warn` does not; `enabled` is False on all ranks but 0.

    baseline: (name of a loss, its unigram baseline), shown next to the loss.
    """

    def __init__(
        self,
        enabled: bool = True,
        quiet: bool = False,
        baseline: tuple[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enabled, self._quiet, self._baseline, self._clock = enabled, quiet, baseline, clock
        self._next_line_at = clock() + FIRST_LINE_AFTER
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "ProgressDisplay":
        self._next_line_at = self._clock() + FIRST_LINE_AFTER
        if self._enabled and not self._quiet and sys.stderr.isatty():
            columns = BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
            self._bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=False)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = self._task = None

    def info(self, message: str) -> None:
        if not self._quiet:
            self.warn(message)

    def warn(self, message: str) -> None:
        if self._bar:
            self._bar.console.print(escape_controls(message, keep_lines=True), markup=False, highlight=False, soft_wrap=True)
        elif self._enabled:
            print_line(message)

    def update(self, fraction_done: float, progress_text: str, metrics: Mapping[str, Any]) -> None:
        """Shows the progress; fraction_done in [0, 1], progress_text such as `step  20/100`."""
        if not self._bar:
            self._print_line(progress_text, metrics)
            return
        if self._task is None:  # created late, so that steps before a resume do not count as speed
            self._task = self._bar.add_task("", total=1.0, completed=fraction_done)  # type: ignore[arg-type]
        # on one line of a terminal: single spaces, no learning rate
        shown = {name: value for name, value in metrics.items() if name != "learning_rate"}
        description = " ".join(self.format_line(progress_text, shown).split())
        self._bar.update(self._task, completed=fraction_done, description=description)

    def _print_line(self, progress_text: str, metrics: Mapping[str, Any]) -> None:
        if self._clock() >= self._next_line_at:
            self._next_line_at = self._clock() + LINE_INTERVAL
            eta = timedelta(seconds=round(min(max(metrics["seconds_left"], 0.0), 1e9)))  # timedelta overflows on huge values
            self.info(f"{self.format_line(progress_text, metrics)}  ETA {eta}")

    def format_line(self, progress_text: str, metrics: Mapping[str, Any]) -> str:
        """One line in columns of fixed width: progress, loss, loss next to its unigram baseline, learning rate, speed."""
        columns = [progress_text, f"loss {metrics.get('loss', math.nan):6.3f}"]
        if self._baseline:
            name, unigram_loss = self._baseline
            columns.append(f"{name} {metrics.get(name, math.nan):6.3f} (unigram {unigram_loss:.2f})")
        if "learning_rate" in metrics:
            columns.append(f"lr {metrics['learning_rate']:.2e}")
        return "  ".join([*columns, f"{metrics['tokens_per_second']:>9,.0f} tokens/s"])


def format_metrics(values: Mapping[str, float]) -> str:
    """Metrics on one line, such as `loss 2.312, accuracy 0.8304`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
