"""Division of sequences into batches of at most so many tokens."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def batch_boundaries(lengths: Ints, batch_tokens: int) -> list[int]:
    """Split points of samples with these lengths into consecutive batches of at most `batch_tokens`."""
    ends, boundaries = lengths.cumsum(), [0]
    while boundaries[-1] < len(ends):
        previous_end = ends[boundaries[-1] - 1] if boundaries[-1] else 0
        boundaries.append(int(np.searchsorted(ends, previous_end + batch_tokens, side="right")))
    return boundaries[1:-1]
