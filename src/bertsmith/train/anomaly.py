"""Detection of anomalous updates: a non-finite loss or gradient norm, or a spike of the gradient norm."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

HISTORY_SIZE, MIN_HISTORY = 64, 16  # accepted norms kept for the median; with fewer than MIN_HISTORY there is no threshold


class AnomalyDetector:
    """Decides which updates are skipped, and when skipping alone no longer helps.

    spike_factor: a gradient norm above spike_factor * median(recent norms) is a spike; 0 accepts every finite norm.
    max_bad_steps: skipped updates in a row after which the trainer rolls back to a checkpoint.
    grad_norms, bad_steps: history to resume from.
    """

    def __init__(self, spike_factor: float, max_bad_steps: int, grad_norms: Iterable[float] = (), bad_steps: int = 0) -> None:
        self.spike_factor, self.max_bad_steps = spike_factor, max_bad_steps
        self.grad_norms: deque[float] = deque(grad_norms, maxlen=HISTORY_SIZE)
        self.bad_steps = bad_steps  # skipped updates in a row

    @property
    def should_roll_back(self) -> bool:
        return self.bad_steps >= self.max_bad_steps

    @property
    def spike_threshold(self) -> float:
        """Largest accepted gradient norm: spike_factor times the median of the recent accepted norms, or inf."""
        median_norm = median(self.grad_norms) if len(self.grad_norms) >= MIN_HISTORY else 0.0
        return self.spike_factor * median_norm if self.spike_factor and median_norm else math.inf

    def check(self, loss: float, grad_norm: float) -> str | None:
        """Records one update; returns the reason to skip it, or None."""
        reason = self._skip_reason(loss, grad_norm)
        if reason is None:
            self.grad_norms.append(grad_norm)
        self.bad_steps = self.bad_steps + 1 if reason else 0
        return reason

    def _skip_reason(self, loss: float, grad_norm: float) -> str | None:
        if not math.isfinite(loss):
            return f"loss is {loss}"
        if not math.isfinite(grad_norm):
            return f"gradient norm is {grad_norm}"
        if grad_norm <= self.spike_threshold:
            return None
        median_norm = self.spike_threshold / self.spike_factor
        return f"gradient norm {grad_norm:.4g} is over {self.spike_factor:g} times its median of {median_norm:.4g}"
