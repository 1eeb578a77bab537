"""Progress of a training run (saved as progress.json in each checkpoint) and its clock."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import msgspec

from ..errors import UserError


class LogProgress(msgspec.Struct):
    """What metrics.jsonl holds, and what its next row averages over."""

    learning_rate: float = 0.0  # of the last step
    loss: float | None = None  # of the last row with one; updates without targets have none
    metric_sums: dict[str, tuple[float, float]] = {}  # sum and count by metric, since that row
    metrics_bytes: int = 0  # size of metrics.jsonl


class EvaluationProgress(msgspec.Struct):
    """The last evaluation, and the best one so far (early stopping)."""

    metrics: dict[str, dict[str, float | None]] = {}  # of the last evaluation, by split
    step: int = -1  # of the last evaluation
    best_score: float | None = None
    best_step: int = -1  # step of the best score, in the file name of its weights
    evals_since_best: int = 0


class AnomalyProgress(msgspec.Struct):
    """Skipped updates and rollbacks, and the history of the AnomalyDetector."""

    skipped_steps: int = 0
    grad_norms: list[float] = []  # recent ones
    bad_steps: int = 0  # skipped updates in a row
    rollbacks: int = 0
    lr_scale: float = 1.0  # multiplies the learning rate; halved by each rollback
    batch_offset: int = 0  # updates whose batches are left out, since they led to a rollback


class TimeProgress(msgspec.Struct):
    """Seconds over all sessions."""

    seconds: float = 0.0
    step_seconds: float = 0.0  # median
    startup_seconds: float = 0.0


class TrainProgress(msgspec.Struct):
    """Everything besides tensors that the next step depends on."""

    step: int = 0  # updates done, skipped ones included
    tokens: int = 0  # input tokens so far
    is_finished: bool = False
    log: LogProgress = msgspec.field(default_factory=LogProgress)
    evaluation: EvaluationProgress = msgspec.field(default_factory=EvaluationProgress)
    anomalies: AnomalyProgress = msgspec.field(default_factory=AnomalyProgress)
    time: TimeProgress = msgspec.field(default_factory=TimeProgress)
    grad_scaler: dict[str, Any] = {}


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

    def __init__(self, earlier: TimeProgress | None = None) -> None:
        earlier = earlier or TimeProgress()
        self._started_at, self._previous_elapsed = time.monotonic(), earlier.seconds
        self._startup_seconds, self._is_first_step = earlier.startup_seconds, True
        self._recent_step_seconds: deque[float] = deque([earlier.step_seconds] if earlier.step_seconds else [], maxlen=64)

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

    def read(self) -> TimeProgress:
        """The times now."""
        return TimeProgress(self.elapsed, self.step_seconds, self.startup_seconds)

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
