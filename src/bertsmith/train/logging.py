"""Named sums and counts, whose means are what a log shows."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from .. import artifacts
from ..errors import UserError
from .loss import BatchLike, Loss

LOSS_PREFIX = "loss."  # before the name of each part of the loss


class MetricSums:
    """Sums and counts on the host; adding two of them is exact where averaging means would not be."""

    def __init__(self, sums: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.sums: dict[str, tuple[float, float]] = {name: (a, b) for name, (a, b) in (sums or {}).items()}

    def add(self, other: "MetricSums") -> None:
        for name, (total, count) in other.sums.items():
            old_total, old_count = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (old_total + total, old_count + count)

    def drop_nonfinite(self) -> "MetricSums":
        """Without the sums that would spoil all that is added to them."""
        return MetricSums({name: pair for name, pair in self.sums.items() if all(map(math.isfinite, pair))})

    def means(self) -> dict[str, float]:
        """`loss` (the sum of its parts), then everything that was counted at least once."""
        means = {name: total / count for name, (total, count) in self.sums.items() if count}
        parts = [mean for name, mean in means.items() if name.startswith(LOSS_PREFIX)]
        return {"loss": sum(parts), **means} if parts else means


class DeviceMetricSums:
    """Sums and counts that may still be on their way through the device."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        old_total, old_count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (old_total + _to_float64(total), old_count + _to_float64(count))

    def add_loss(self, loss: Loss, batch: BatchLike) -> None:
        for name, part in loss.parts.items():
            self.add(LOSS_PREFIX + name, part, batch.target_counts[name])
        for name, (total, count) in loss.metrics.items():
            self.add(name, total, count)

    def to_host(self) -> MetricSums:
        """All of it on the host, for one wait."""
        numbers = iter(_fetch_floats([number for pair in self._sums.values() for number in pair]))
        return MetricSums({name: (next(numbers), next(numbers)) for name in self._sums})


def _to_float64(value: Tensor | float) -> Tensor | float:
    return value.detach().double().reshape(()) if isinstance(value, Tensor) else value


def _fetch_floats(values: list[Tensor | float]) -> list[float]:
    held = [value for value in values if isinstance(value, Tensor)]
    device = next((value.device for value in held if value.is_cuda), torch.device("cpu"))
    read = iter(torch.stack([value.to(device) for value in held]).tolist()) if held else iter(())
    return [next(read) if isinstance(value, Tensor) else float(value) for value in values]


class MetricsLogger:
    """Only the leader of several processes writes; TensorBoard gets the same numbers where it is asked for."""

    def __init__(self, folder: Path, enabled: bool = True, tensorboard: bool = False) -> None:
        self.path, self._enabled = folder / "metrics.jsonl", enabled
        self._tensorboard = TensorBoardLogger(folder / "tensorboard") if tensorboard and enabled else None

    def log(self, step: int, **values: Any) -> None:
        if not self._enabled:
            return
        values = {name: None if _is_nonfinite(value) else value for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **values}, ensure_ascii=False) + "\n")
        if self._tensorboard:
            self._tensorboard.add(step, values)

    def flush(self) -> int:
        """Its size, once all of it is on the disk: what a checkpoint remembers."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def truncate(self, size: int, step: int) -> None:
        """Forget the rows after a checkpoint: they come again."""
        if not self._enabled:
            return
        if self._tensorboard:
            self._tensorboard.start(step)
        if self.path.exists():
            kept = self.path.read_bytes()[:size]
            artifacts.write_atomic(self.path, kept[: kept.rfind(b"\n") + 1])  # whole rows, whatever the disk lost


class TensorBoardLogger:
    """The numbers of the rows as TensorBoard's events; runs that went on hide what they repeat."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("train.tensorboard needs a package: pip install bertsmith[tensorboard]") from None
        self._folder, self._writer_class = folder, SummaryWriter
        self._writer: Any = None

    def start(self, step: int) -> None:
        self._writer = self._writer_class(str(self._folder), purge_step=step + 1)

    def add(self, step: int, values: dict[str, Any]) -> None:
        assert self._writer, "rows come after `cut`"
        prefix = values.get("trial", "train")
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{prefix}/{name}", value, step)
        self._writer.flush()


def _is_nonfinite(value: Any) -> bool:
    """JSON has no word for NaN or infinity."""
    return isinstance(value, float) and not math.isfinite(value)


FIRST_LINE_AFTER, LINE_INTERVAL = 10.0, 30.0  # seconds, to the first line in a file or pipe and from each to the next


class ProgressDisplay:
    """`say` is silent when quiet, `warn` is not; both are silent in all processes but the leader."""

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
            self._bar.console.print(message, markup=False, highlight=False, soft_wrap=True)
        elif self._enabled:
            print(message, file=sys.stderr, flush=True)

    def update(self, fraction_done: float, progress_text: str, metrics: Mapping[str, Any]) -> None:
        """`share` of the run is done; `place` says it in its own words, such as `step 20/100`."""
        if not self._bar:
            self._print_line(progress_text, metrics)
            return
        if self._task is None:  # made here, so that the steps of earlier sittings are not taken for speed
            self._task = self._bar.add_task("", total=1.0, completed=fraction_done)  # type: ignore[arg-type]
        self._bar.update(self._task, completed=fraction_done, description=self.format_line(progress_text, metrics))

    def _print_line(self, progress_text: str, metrics: Mapping[str, Any]) -> None:
        if self._clock() >= self._next_line_at:
            self._next_line_at = self._clock() + LINE_INTERVAL
            left = timedelta(seconds=round(min(max(metrics["left"], 0.0), 1e9)))  # more is no time a person waits for
            self.info(f"{self.format_line(progress_text, metrics)}  {left} left")

    def format_line(self, progress_text: str, metrics: Mapping[str, Any]) -> str:
        part, unigram = self._baseline or ("", 0.0)
        words = f"  {part} {metrics.get(LOSS_PREFIX + part, float('nan')):.3f} (unigram {unigram:.2f})" if part else ""
        loss, speed = metrics.get("loss", float("nan")), metrics["speed"]
        return f"{progress_text}  loss {loss:.3f}{words}  {speed:,.0f} tokens/s"


def format_metrics(values: Mapping[str, float]) -> str:
    """`loss 2.312, accuracy 0.8304`"""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
