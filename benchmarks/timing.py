"""Time several functions in turns, so that noise of the machine affects all of them."""

import statistics
import time
from collections.abc import Callable


def median_seconds(*functions: Callable[[], object], rounds: int = 5, warmup: int = 1) -> list[float]:
    """Median seconds of each function."""
    seconds: list[list[float]] = [[] for _ in functions]
    for round_index in range(warmup + rounds):
        for function, function_seconds in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            if round_index >= warmup:
                function_seconds.append(time.perf_counter() - start)
    return [statistics.median(function_seconds) for function_seconds in seconds]
