"""Positions as waves: a fixed vector for every place, sines and cosines of ever longer periods."""

from math import prod
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ..config import Config, Count
from ..errors import BadInput
from . import kernels
from .sublayers import halved

LONGEST = 10000.0  # of the periods, over 2 pi


def sinusoid(positions: int, width: int) -> Tensor:
    """(positions, width): sin(place / 10000^(2i / width)) in column 2i, and the cosine of the same in column 2i + 1."""
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] / LONGEST ** (even / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].float()


class Rotary(nn.Module):
    """Su et al. 2021, on halves: number i of the first half turns with number i of the second."""

    def __init__(self, width: int, period: float) -> None:
        super().__init__()
        if width % 2:
            raise BadInput(f"rotary positions turn pairs of numbers: heads of {width} are not even; change model.mixer.heads")
        self.width, self.period = width, period
        self.held = torch.empty(0, width)  # made as needed, not part of a checkpoint

    def turns(self, longest: int, device: torch.device) -> Tensor:
        """(places, width of a head) in float32, for at least `longest` places: cosines, then sines."""
        if len(self.held) < longest or self.held.device != device:
            with torch.inference_mode(False):  # it may serve training later
                speeds = self.period ** -(torch.arange(0, self.width, 2, device=device).double() / self.width)
                angles = torch.arange(1 << (longest - 1).bit_length(), device=device)[:, None] * speeds
                self.held = torch.cat([angles.cos(), angles.sin()], 1).float()
        return self.held


def turned(qkv: Tensor, turns: Tensor, places: Tensor, heads: int) -> Tensor:
    """(tokens, 3 x width) with queries and keys turned."""
    if kernels.serves(qkv):
        from .kernels.rope import turned as in_place

        return in_place(qkv, turns, places, heads)
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)
    cosine, sine = turns[places][:, None].to(qkv.dtype).chunk(2, -1)
    return torch.stack([_turn(q, cosine, sine), _turn(k, cosine, sine), v], -3).flatten(-3)


def spun(x: Tensor, turns: Tensor, by: Tensor) -> Tensor:
    """(.., heads, width of a head), turned on by so many places, or back; all `by` (..) are less than those in `turns`, and
    what heads are wider than that is zeros."""
    cosine, sine = turns[by.abs()][..., None, :].chunk(2, -1)
    found, gap = _turn(x[..., : turns.shape[1]], cosine, sine * by.sign()[..., None, None]), x.shape[-1] - turns.shape[1]
    return (F.pad(found, (0, gap)) if gap else found).to(x.dtype)


def _turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


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


PERIOD = 10000.0  # of the longest wave, over 2 pi


def by_key(scores: Tensor, keys: int) -> Tensor:
    """(.., queries, 1 + distances) -> (.., queries, keys), without a copy: the shift trick of Dai et al. 2019, appendix B.

    Column 1 + c is the distance c steps nearer than the largest, which lies between the last query and the first key;
    column 0 is read by nobody. Each query stands one step further from a key than the one before it, so that flat
    scores, read in rows one shorter, have key j in column j. Keys nearer than the nearest distance get what is
    of no use, and must be hidden.
    """
    queries, columns = scores.shape[-2:]
    rows = scores.flatten(-2).narrow(-1, queries, queries * (columns - 1))
    return rows.unflatten(-1, (queries, columns - 1)).narrow(-1, 0, keys)


def waves(distances: Tensor, width: int) -> Tensor:
    """(distances, width) in float32: sines, then cosines, of ever longer periods; of what lies ahead, below zero."""
    speeds = PERIOD ** -(torch.arange(0, width, 2, device=distances.device).double() / width)
    angles = distances[:, None] * speeds
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :width].float()
