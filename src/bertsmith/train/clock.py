"""The time a run has taken, over all the sittings it took."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median


class Clock:
    """Goes on from `elapsed`; `pace` is the usual time of a step, `lost` what starting up took.

    The first step of a sitting compiles and starts workers. Its time is spent, but no learning is done in it: a schedule
    that counted it would have its warm-up behind it before the second step.
    """

    def __init__(self, elapsed: float = 0.0, pace: float = 0.0, lost: float = 0.0) -> None:
        self._began, self._before, self._lost = time.monotonic(), elapsed, lost
        self._fresh = True
        self._recent: deque[float] = deque([pace] if pace else [], maxlen=64)

    @property
    def sitting(self) -> float:
        """Seconds of this process alone."""
        return time.monotonic() - self._began

    @property
    def elapsed(self) -> float:
        return self._before + self.sitting

    @property
    def lost(self) -> float:
        return self._lost + (self.sitting if self._fresh else 0.0)

    @property
    def pace(self) -> float:
        return median(self._recent) if self._recent else 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        taken = time.monotonic() - began
        if self._fresh:
            self._lost, self._fresh = self.lost, False
        else:
            self._recent.append(taken)
