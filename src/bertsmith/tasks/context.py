"""Which of several overlapping windows sees most around each place."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def most_context(windows: Sequence[tuple[int, int]], count: int) -> NDArray[np.int64]:
    """For each place, the window with the most on its poorer side (BERT's rule; in a draw the longer one, then the first)."""
    best, owner = np.full(count, -1.0), np.zeros(count, np.int64)
    for number, (start, end) in enumerate(windows):
        places = np.arange(end - start)
        context = np.minimum(places, places[::-1]) + 0.01 * (end - start)
        better = context > best[start:end]
        best[start:end][better] = context[better]
        owner[start:end][better] = number
    return owner
