"""Axial positions: a place is a row and a column, and its vector that of the row beside that of the column."""

from math import prod
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ..config import Config, Count
from ..errors import BadInput
from .precision import halved


class Axial(Config, frozen=True):
    """Kitaev et al. 2020: a million places by two tables of a thousand."""

    shape: Annotated[tuple[Count, ...], Meta(min_length=1), "places along each axis; all of them are their product"] = (64, 64)
    widths: Annotated[
        tuple[Count, ...] | None, "numbers that each axis gives; together the tables' width; none: about as many each"
    ] = None

    def build(self, positions: int, width: int) -> "AxialTable":
        if prod(self.shape) < positions:
            raise BadInput(f"model.table.shape={list(self.shape)} has {prod(self.shape):,} places, fewer than "
                           f"model.positions={positions:,}; make it larger")  # fmt: skip
        count = len(self.shape)
        widths = self.widths or tuple((width * (n + 1)) // count - (width * n) // count for n in range(count))
        if len(widths) != count or sum(widths) != width or not all(widths):
            raise BadInput(f"model.table.widths={list(widths)} are not {count} that make {width} together")
        return AxialTable(self.shape, widths)


class AxialTable(nn.Module):
    def __init__(self, shape: tuple[int, ...], widths: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.axes = nn.ModuleList(nn.Embedding(size, width) for size, width in zip(shape, widths, strict=True))

    def forward(self, place: Tensor) -> Tensor:
        """(tokens,) to (tokens, width): the last axis is that of neighbours."""
        parts: list[Tensor] = []
        for size, axis in zip(reversed(self.shape), reversed(self.axes), strict=True):
            table: Tensor = axis.weight  # type: ignore[assignment]
            parts.append(F.embedding(place % size, halved(table)))
            place = place // size
        return torch.cat(parts[::-1], -1)
