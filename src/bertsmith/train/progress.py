"""Progress of a training run (saved as progress.json in each checkpoint) and its clock."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import msgspec

from ..errors import UserError


class TrainProgress(msgspec.Struct):
    """Everything besides tensors that the next step depends on."""

    step: int = 0  # updates done, skipped ones included
    batch_offset: int = 0  # updates whose batches are left out, since they led to a rollback
    lr_scale: float = 1.0  # multiplies the learning rate; halved by each rollback
    rollbacks: int = 0
    skipped_steps: int = 0
    tokens: int = 0  # input tokens so far
    learning_rate: float = 0.0  # of the last step
    loss: float | None = None  # of the last logged row
    metric_sums: dict[str, tuple[float, float]] = {}  # sum and count by metric, since that row
    grad_norms: list[float] = []  # recent gradient norms of the AnomalyDetector
    bad_steps: int = 0  # its skipped updates in a row
    evaluations: dict[str, dict[str, float | None]] = {}  # metrics of the last evaluation, by split
    eval_step: int = -1  # step of the last evaluation
    best_score: float | None = None
    best_step: int = -1  # step of the best score, in the file name of its weights
    evals_since_best: int = 0
    is_finished: bool = False
    seconds: float = 0.0  # over all sessions
    step_seconds: float = 0.0  # median
    startup_seconds: float = 0.0  # over all sessions
    metrics_bytes: int = 0  # size of metrics.jsonl
    grad_scaler: dict[str, Any] = {}
    fingerprint: str = ""


def parse_progress(values: dict[str, Any], source: str) -> TrainProgress:
    try:
        return msgspec.convert(values, TrainProgress)
    except msgspec.ValidationError as error:
        raise UserError(f"{source} cannot be read by this version of bertsmith: {error}") from None


def progress_to_dict(progress: TrainProgress) -> dict[str, Any]:
    return dict(msgspec.to_builtins(progress))


class Clock:
    """Elapsed time over all sessions of a run, median seconds per step, and startup time.

    The first step of a session compiles the model and starts workers. Its time counts as startup: a schedule by the clock
    (`train.minutes`) that counted it would be past its warmup before the second step.
    """

    def __init__(self, elapsed: float = 0.0, step_seconds: float = 0.0, startup_seconds: float = 0.0) -> None:
        self._started_at, self._previous_elapsed, self._startup_seconds = time.monotonic(), elapsed, startup_seconds
        self._is_first_step = True
        self._recent_step_seconds: deque[float] = deque([step_seconds] if step_seconds else [], maxlen=64)

    @property
    def session_seconds(self) -> float:
        """Seconds since this process began."""
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
        """Measures the step inside the `with` block."""
        started_at = time.monotonic()
        yield
        seconds = time.monotonic() - started_at
        if self._is_first_step:
            self._startup_seconds, self._is_first_step = self.startup_seconds, False
        else:
            self._recent_step_seconds.append(seconds)
