"""What a person sees of a run, on stderr: a bar where there is a terminal, a line now and then where there is none."""

import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .tally import PART

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
