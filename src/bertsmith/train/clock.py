"""The time a run has taken, over all the sittings it took."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median


class Clock:
    """Goes on from `elapsed`; `pace` is the usual time of a step."""

    def __init__(self, elapsed: float = 0.0, pace: float = 0.0) -> None:
        self._began, self._before = time.monotonic(), elapsed
        self._recent: deque[float] = deque([pace] if pace else [], maxlen=64)

    @property
    def sitting(self) -> float:
        """Seconds of this process alone."""
        return time.monotonic() - self._began

    @property
    def elapsed(self) -> float:
        return self._before + self.sitting

    @property
    def pace(self) -> float:
        return median(self._recent) if self._recent else 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._recent.append(time.monotonic() - began)
