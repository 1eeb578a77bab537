"""How far a run has come, in values that JSON holds."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import msgspec

from ..errors import UserError


class TrainProgress(msgspec.Struct):
    """With the tensors beside it, everything that the next step depends on."""

    step: int = 0  # updates behind us, skipped ones too
    jump: int = 0  # updates whose micro-batches are left out, since they ended in a rollback
    rate_factor: float = 1.0  # halved by each rollback
    rollbacks: int = 0
    skipped: int = 0
    tokens: int = 0  # read by the model so far
    rate: float = 0.0  # of the last step
    loss: float | None = None  # of the last row of the log
    interval: dict[str, tuple[float, float]] = {}  # sums and counts since that row
    norms: list[float] = []  # the guard's history
    bad: int = 0  # and its bad updates in a row
    trials: dict[str, dict[str, float | None]] = {}  # of the last evaluation
    judged_at: int = -1  # its step
    best: float | None = None  # score of an evaluation
    best_step: int = -1  # and its step, by which its weights are kept
    stale: int = 0  # evaluations since
    done: bool = False
    elapsed: float = 0.0  # seconds
    pace: float = 0.0  # seconds a step takes
    lost: float = 0.0  # seconds of starting up, in all sittings
    metrics_bytes: int = 0
    scaler: dict[str, Any] = {}
    fingerprint: str = ""


def parse_progress(values: dict[str, Any], source: str) -> TrainProgress:
    try:
        return msgspec.convert(values, TrainProgress)
    except msgspec.ValidationError as error:
        raise UserError(f"{source} is not progress that this version can read: {error}") from None


def progress_to_dict(progress: TrainProgress) -> dict[str, Any]:
    return dict(msgspec.to_builtins(progress))


class Clock:
    """Goes on from `elapsed`; `pace` is the usual time of a step, `lost` what starting up took.

    The first step of a sitting compiles and starts workers. Its time is spent, but no learning is done in it: a schedule
    that counted it would have its warm-up behind it before the second step.
    """

    def __init__(self, elapsed: float = 0.0, step_seconds: float = 0.0, startup_seconds: float = 0.0) -> None:
        self._started_at, self._previous_elapsed, self._startup_seconds = time.monotonic(), elapsed, startup_seconds
        self._is_first_step = True
        self._recent_step_seconds: deque[float] = deque([step_seconds] if step_seconds else [], maxlen=64)

    @property
    def session_seconds(self) -> float:
        """Seconds of this process alone."""
        return time.monotonic() - self._started_at

    @property
    def elapsed(self) -> float:
        return self._previous_elapsed + self.session_seconds

    @property
    def startup_seconds(self) -> float:
        return self._startup_seconds + (self.session_seconds if self._is_first_step else 0.0)

    @property
    def step_seconds(self) -> float:
        return median(self._recent_step_seconds) if self._recent_step_seconds else 0.0

    @contextmanager
    def time_step(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        taken = time.monotonic() - began
        if self._is_first_step:
            self._startup_seconds, self._is_first_step = self.startup_seconds, False
        else:
            self._recent_step_seconds.append(taken)
