"""A vocabulary in clusters, frequent words first: the rarer the words of one, the fewer numbers each is made of."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import BadInput


class Clusters(NamedTuple):
    """Words whose ids are in order of frequency, as those of `tokenizer kind=word` are."""

    borders: tuple[int, ...]  # the first id of each cluster, and how many ids there are
    widths: tuple[int, ...]  # numbers that a word of each is made of

    @classmethod
    def of(cls, cutoffs: Sequence[int], shrink: float, width: int, vocabulary: int) -> "Clusters":
        borders = (0, *cutoffs, vocabulary)
        if not cutoffs or any(a >= b for a, b in pairwise(borders)):
            raise BadInput(f"cutoffs {list(cutoffs)} do not cut {vocabulary:,} words into clusters; give rising ids, all above "
                           "0 and below that")  # fmt: skip
        return cls(borders, tuple(max(1, int(width // shrink**number)) for number in range(len(cutoffs) + 1)))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise(self.borders))

    def owner(self, ids: Tensor) -> Tensor:
        """The cluster of each."""
        return torch.bucketize(ids, torch.tensor(self.borders[1:-1], device=ids.device), right=True)
