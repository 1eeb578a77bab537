"""Two sides of a comparison, measured in turns, so that a noisy machine is noisy for both."""

import statistics
import time
from collections.abc import Callable


def median_seconds(*functions: Callable[[], object], rounds: int = 5, warmup: int = 1) -> list[float]:
    """The median time of each side."""
    taken: list[list[float]] = [[] for _ in functions]
    for number in range(warmup + rounds):
        for side, times in zip(functions, taken, strict=True):
            start = time.perf_counter()
            side()
            if number >= warmup:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]
