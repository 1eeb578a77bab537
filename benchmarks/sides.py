"""Two sides of a comparison, measured in turns, so that a noisy machine is noisy for both."""

import statistics
import time
from collections.abc import Callable


def seconds(*sides: Callable[[], object], rounds: int = 5, warm: int = 1) -> list[float]:
    """The median time of each side."""
    taken: list[list[float]] = [[] for _ in sides]
    for number in range(warm + rounds):
        for side, times in zip(sides, taken, strict=True):
            start = time.perf_counter()
            side()
            if number >= warm:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]
