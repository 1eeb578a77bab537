"""A model for more tokens: each new one begins as the mean of those it replaces."""

from collections.abc import Sequence

import torch
from torch import Tensor

TABLES = ("encoder.tokens.weight", "heads.words.bias", "heads.words.table.weight")  # a row, or a number, for every token


def grown(weights: dict[str, Tensor], first: int, origins: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The weights with rows from `first` on for new tokens, number n the mean of the old rows `origins[n]`.

    A table that is padded beyond its old tokens gives its padding first, and is as long as before if that is enough.
    """
    return {name: _longer(tensor, first, origins) if name in TABLES else tensor for name, tensor in weights.items()}


def _longer(table: Tensor, first: int, origins: Sequence[Sequence[int]]) -> Tensor:
    new = torch.stack([table[list(ids)].mean(0) for ids in origins])
    return torch.cat([table[:first], new, table[first + len(new) :]])
