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
from ..errors import BadInput
from .loss import Batch, Loss

PART = "loss."  # before the name of each part of the loss


class Tally:
    """Sums and counts on the host; adding two of them is exact where averaging means would not be."""

    def __init__(self, entries: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.entries: dict[str, tuple[float, float]] = {name: (a, b) for name, (a, b) in (entries or {}).items()}

    def add(self, other: "Tally") -> None:
        for name, (total, count) in other.entries.items():
            old_total, old_count = self.entries.get(name, (0.0, 0.0))
            self.entries[name] = (old_total + total, old_count + count)

    def finite(self) -> "Tally":
        """Without the sums that would spoil all that is added to them."""
        return Tally({name: pair for name, pair in self.entries.items() if all(map(math.isfinite, pair))})

    def means(self) -> dict[str, float]:
        """`loss` (the sum of its parts), then everything that was counted at least once."""
        means = {name: total / count for name, (total, count) in self.entries.items() if count}
        parts = [mean for name, mean in means.items() if name.startswith(PART)]
        return {"loss": sum(parts), **means} if parts else means


class Meter:
    """Sums and counts that may still be on their way through the device."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        old_total, old_count = self._held.get(name, (0.0, 0.0))
        self._held[name] = (old_total + _exact(total), old_count + _exact(count))

    def add_loss(self, loss: Loss, batch: Batch) -> None:
        for name, part in loss.parts.items():
            self.add(PART + name, part, batch.counts[name])
        for name, (total, count) in loss.report.items():
            self.add(name, total, count)

    def read(self) -> Tally:
        """All of it on the host, for one wait."""
        numbers = iter(_numbers([number for pair in self._held.values() for number in pair]))
        return Tally({name: (next(numbers), next(numbers)) for name in self._held})


def _exact(number: Tensor | float) -> Tensor | float:
    return number.detach().double().reshape(()) if isinstance(number, Tensor) else number


def _numbers(values: list[Tensor | float]) -> list[float]:
    held = [value for value in values if isinstance(value, Tensor)]
    device = next((value.device for value in held if value.is_cuda), torch.device("cpu"))
    read = iter(torch.stack([value.to(device) for value in held]).tolist()) if held else iter(())
    return [next(read) if isinstance(value, Tensor) else float(value) for value in values]


class Metrics:
    """Only the leader of several processes writes; TensorBoard gets the same numbers where it is asked for."""

    def __init__(self, folder: Path, writes: bool = True, tensorboard: bool = False) -> None:
        self.path, self._writes = folder / "metrics.jsonl", writes
        self._curves = Curves(folder / "tensorboard") if tensorboard and writes else None

    def row(self, step: int, **values: Any) -> None:
        if not self._writes:
            return
        values = {name: None if _lost(value) else value for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **values}, ensure_ascii=False) + "\n")
        if self._curves:
            self._curves.add(step, values)

    def settled(self) -> int:
        """Its size, once all of it is on the disk: what a checkpoint remembers."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut(self, size: int, step: int) -> None:
        """Forget the rows after a checkpoint: they come again."""
        if not self._writes:
            return
        if self._curves:
            self._curves.begin(step)
        if self.path.exists():
            kept = self.path.read_bytes()[:size]
            artifacts.write_whole(self.path, kept[: kept.rfind(b"\n") + 1])  # whole rows, whatever the disk lost


class Curves:
    """The numbers of the rows as TensorBoard's events; runs that went on hide what they repeat."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput("train.tensorboard needs a package: pip install bertsmith[tensorboard]") from None
        self._folder, self._kind = folder, SummaryWriter
        self._writer: Any = None

    def begin(self, step: int) -> None:
        self._writer = self._kind(str(self._folder), purge_step=step + 1)

    def add(self, step: int, values: dict[str, Any]) -> None:
        assert self._writer, "rows come after `cut`"
        prefix = values.get("trial", "train")
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{prefix}/{name}", value, step)
        self._writer.flush()


def _lost(value: Any) -> bool:
    """JSON has no word for NaN or infinity."""
    return isinstance(value, float) and not math.isfinite(value)


FIRST, EVERY = 10.0, 30.0  # seconds, to the first line in a file or pipe and from each to the next


class Display:
    """`say` is silent when quiet, `warn` is not; both are silent in all processes but the leader."""

    def __init__(
        self,
        speaks: bool = True,
        quiet: bool = False,
        baseline: tuple[str, float] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speaks, self._quiet, self._baseline, self._now = speaks, quiet, baseline, now
        self._due = now() + FIRST
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Display":
        self._due = self._now() + FIRST
        if self._speaks and not self._quiet and sys.stderr.isatty():
            columns = BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
            self._bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=False)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = self._task = None

    def say(self, words: str) -> None:
        if not self._quiet:
            self.warn(words)

    def warn(self, words: str) -> None:
        if self._bar:
            self._bar.console.print(words, markup=False, highlight=False, soft_wrap=True)
        elif self._speaks:
            print(words, file=sys.stderr, flush=True)

    def show(self, share: float, place: str, report: Mapping[str, Any]) -> None:
        """`share` of the run is done; `place` says it in its own words, such as `step 20/100`."""
        if not self._bar:
            self._show_plainly(place, report)
            return
        if self._task is None:  # made here, so that the steps of earlier sittings are not taken for speed
            self._task = self._bar.add_task("", total=1.0, completed=share)  # type: ignore[arg-type]
        self._bar.update(self._task, completed=share, description=self.line(place, report))

    def _show_plainly(self, place: str, report: Mapping[str, Any]) -> None:
        if self._now() >= self._due:
            self._due = self._now() + EVERY
            left = timedelta(seconds=round(min(max(report["left"], 0.0), 1e9)))  # more is no time a person waits for
            self.say(f"{self.line(place, report)}  {left} left")

    def line(self, place: str, report: Mapping[str, Any]) -> str:
        part, unigram = self._baseline or ("", 0.0)
        words = f"  {part} {report.get(PART + part, float('nan')):.3f} (unigram {unigram:.2f})" if part else ""
        loss, speed = report.get("loss", float("nan")), report["speed"]
        return f"{place}  loss {loss:.3f}{words}  {speed:,.0f} tokens/s"


def spoken(values: Mapping[str, float]) -> str:
    """`loss 2.312, accuracy 0.8304`"""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
