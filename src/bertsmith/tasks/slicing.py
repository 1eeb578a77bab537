"""Slices of the examples: a name and a boolean mask each."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_LABELS = 24  # labels with a slice of their own; the rest share one slice

SliceMasks = list[tuple[str, NDArray[np.bool_]]]


def group_masks(names: Iterable[str]) -> SliceMasks:
    """A mask for each of the MAX_LABELS most frequent names, most frequent first, and one for all others."""
    groups = np.array(list(names), dtype=object)
    frequent = [name for name, _ in Counter(groups.tolist()).most_common(MAX_LABELS)]
    return [(name, groups == name) for name in frequent] + [("other", ~np.isin(groups.astype(str), frequent))]


def quartile_masks(numbers: ArrayLike) -> SliceMasks:
    """A mask for each quarter of the numbers; equal ones share a slice."""
    values = np.asarray(numbers)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, 5)))
    return [(f"{low:.4g} to {high:.4g}", (values > low if i else values >= low) & (values <= high))
            for i, (low, high) in enumerate(pairwise(edges))]  # fmt: skip


def count_masks(counts: ArrayLike, slices: Sequence[tuple[str, float]]) -> SliceMasks:
    """A mask for each (name, largest count of the slice), in ascending order."""
    values, limits = np.asarray(counts), [-1.0, *(limit for _, limit in slices)]
    return [(name, (values > low) & (values <= high)) for (name, high), low in zip(slices, limits, strict=False)]
