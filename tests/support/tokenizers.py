"""Encoding with the cached encoder of `prepare`."""

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenization.fast_encode import CachedEncoder


def encode_lines(encoder: CachedEncoder, text: str) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """Token ids of all lines, concatenated, and the number of tokens of each line."""
    return encoder.token_ids(encoder.lookup_runs(text))
