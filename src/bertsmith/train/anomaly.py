"""Watches every update for gradients that would ruin the weights."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

REMEMBERED, NEEDED = 64, 16  # accepted norms a spike is measured against; fewer than NEEDED tell too little


class Guard:
    """`judge` gives the reason to skip an update, or None; `tired` says that skipping alone no longer helps."""

    def __init__(self, spike: float, patience: int, norms: Iterable[float] = (), bad: int = 0) -> None:
        self.spike, self.patience = spike, patience
        self.norms: deque[float] = deque(norms, maxlen=REMEMBERED)
        self.bad = bad  # bad updates in a row

    @property
    def tired(self) -> bool:
        return self.bad >= self.patience

    @property
    def limit(self) -> float:
        """The longest gradient that is no spike."""
        usual = median(self.norms) if len(self.norms) >= NEEDED else 0.0
        return self.spike * usual if self.spike and usual else math.inf

    def judge(self, loss: float, norm: float) -> str | None:
        reason = self._reason(loss, norm)
        if reason is None:
            self.norms.append(norm)
        self.bad = self.bad + 1 if reason else 0
        return reason

    def _reason(self, loss: float, norm: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient norm is {norm}"
        if norm <= self.limit:
            return None
        return f"the gradient norm {norm:.4g} is a spike (over {self.spike:g} times the usual {self.limit / self.spike:.4g})"
