"""Watches every update for gradients that would ruin the weights."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

HISTORY_SIZE, MIN_HISTORY = 64, 16  # accepted norms a spike is measured against; fewer than NEEDED tell too little


class AnomalyDetector:
    """`judge` gives the reason to skip an update, or None; `tired` says that skipping alone no longer helps."""

    def __init__(self, spike_factor: float, max_bad_steps: int, grad_norms: Iterable[float] = (), bad_steps: int = 0) -> None:
        self.spike_factor, self.max_bad_steps = spike_factor, max_bad_steps
        self.grad_norms: deque[float] = deque(grad_norms, maxlen=HISTORY_SIZE)
        self.bad_steps = bad_steps  # bad updates in a row

    @property
    def should_roll_back(self) -> bool:
        return self.bad_steps >= self.max_bad_steps

    @property
    def spike_threshold(self) -> float:
        """The longest gradient that is no spike."""
        usual = median(self.grad_norms) if len(self.grad_norms) >= MIN_HISTORY else 0.0
        return self.spike_factor * usual if self.spike_factor and usual else math.inf

    def check(self, loss: float, grad_norm: float) -> str | None:
        reason = self._skip_reason(loss, grad_norm)
        if reason is None:
            self.grad_norms.append(grad_norm)
        self.bad_steps = self.bad_steps + 1 if reason else 0
        return reason

    def _skip_reason(self, loss: float, grad_norm: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(grad_norm):
            return f"the gradient norm is {grad_norm}"
        if grad_norm <= self.spike_threshold:
            return None
        return f"the gradient norm {grad_norm:.4g} is a spike (over {self.spike_factor:g} times the usual {self.spike_threshold / self.spike_factor:.4g})"
