"""Positions as waves: a fixed vector for every place, sines and cosines of ever longer periods."""

from math import prod
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ..config import Config, PosInt
from ..errors import UserError
from . import kernels
from .sublayers import to_compute_dtype

SINUSOID_BASE = 10000.0  # of the periods, over 2 pi


def sinusoidal_positions(num_positions: int, hidden_size: int) -> Tensor:
    """(positions, width): sin(place / 10000^(2i / width)) in column 2i, and the cosine of the same in column 2i + 1."""
    even = torch.arange(0, hidden_size, 2, dtype=torch.float64)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] / SINUSOID_BASE ** (even / hidden_size)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :hidden_size].float()


class RotaryEmbedding(nn.Module):
    """Su et al. 2021, on halves: number i of the first half turns with number i of the second."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        if head_dim % 2:
            raise UserError(
                f"rotary positions turn pairs of numbers: heads of {head_dim} are not even; change model.mixer.heads"
            )
        self.head_dim, self.theta = head_dim, theta
        self.cos_sin_cache = torch.empty(0, head_dim)  # made as needed, not part of a checkpoint

    def cos_sin(self, max_seqlen: int, device: torch.device) -> Tensor:
        """(places, width of a head) in float32, for at least `longest` places: cosines, then sines."""
        if len(self.cos_sin_cache) < max_seqlen or self.cos_sin_cache.device != device:
            with torch.inference_mode(False):  # it may serve training later
                speeds = self.theta ** -(torch.arange(0, self.head_dim, 2, device=device).double() / self.head_dim)
                angles = torch.arange(1 << (max_seqlen - 1).bit_length(), device=device)[:, None] * speeds
                self.cos_sin_cache = torch.cat([angles.cos(), angles.sin()], 1).float()
        return self.cos_sin_cache


def apply_rope(qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int) -> Tensor:
    """(tokens, 3 x width) with queries and keys turned."""
    if kernels.supports(qkv):
        from .kernels.rope import apply_rope_inplace as in_place

        return in_place(qkv, cos_sin, positions, num_heads)
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).unbind(-3)
    cosine, sine = cos_sin[positions][:, None].to(qkv.dtype).chunk(2, -1)
    return torch.stack([_rotate(q, cosine, sine), _rotate(k, cosine, sine), v], -3).flatten(-3)


def shift_rope(x: Tensor, cos_sin: Tensor, offsets: Tensor) -> Tensor:
    """(.., heads, width of a head), turned on by so many places, or back; all `by` (..) are less than those in `turns`, and
    what heads are wider than that is zeros."""
    cosine, sine = cos_sin[offsets.abs()][..., None, :].chunk(2, -1)
    found, gap = (
        _rotate(x[..., : cos_sin.shape[1]], cosine, sine * offsets.sign()[..., None, None]),
        x.shape[-1] - cos_sin.shape[1],
    )
    return (F.pad(found, (0, gap)) if gap else found).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class AxialPositionsConfig(Config, frozen=True):
    """Kitaev et al. 2020: a million places by two tables of a thousand."""

    shape: Annotated[tuple[PosInt, ...], Meta(min_length=1), "places along each axis; all of them are their product"] = (64, 64)
    widths: Annotated[
        tuple[PosInt, ...] | None, "numbers that each axis gives; together the tables' width; none: about as many each"
    ] = None

    def build(self, num_positions: int, hidden_size: int) -> "AxialPositionEmbeddings":
        if prod(self.shape) < num_positions:
            raise UserError(f"model.table.shape={list(self.shape)} has {prod(self.shape):,} places, fewer than "
                           f"model.positions={num_positions:,}; make it larger")  # fmt: skip
        count = len(self.shape)
        widths = self.widths or tuple((hidden_size * (n + 1)) // count - (hidden_size * n) // count for n in range(count))
        if len(widths) != count or sum(widths) != hidden_size or not all(widths):
            raise UserError(f"model.table.widths={list(widths)} are not {count} that make {hidden_size} together")
        return AxialPositionEmbeddings(self.shape, widths)


class AxialPositionEmbeddings(nn.Module):
    def __init__(self, shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.axes = nn.ModuleList(nn.Embedding(size, width) for size, width in zip(shape, dims, strict=True))

    def forward(self, position: Tensor) -> Tensor:
        """(tokens,) to (tokens, width): the last axis is that of neighbours."""
        parts: list[Tensor] = []
        for size, axis in zip(reversed(self.shape), reversed(self.axes), strict=True):
            table: Tensor = axis.weight  # type: ignore[assignment]
            parts.append(F.embedding(position % size, to_compute_dtype(table)))
            position = position // size
        return torch.cat(parts[::-1], -1)


DISTANCE_BASE = 10000.0  # of the longest wave, over 2 pi


def rel_shift(scores: Tensor, num_keys: int) -> Tensor:
    """(.., queries, 1 + distances) -> (.., queries, keys), without a copy: the shift trick of Dai et al. 2019, appendix B.

    Column 1 + c is the distance c steps nearer than the largest, which lies between the last query and the first key;
    column 0 is read by nobody. Each query stands one step further from a key than the one before it, so that flat
    scores, read in rows one shorter, have key j in column j. Keys nearer than the nearest distance get what is
    of no use, and must be hidden.
    """
    queries, columns = scores.shape[-2:]
    rows = scores.flatten(-2).narrow(-1, queries, queries * (columns - 1))
    return rows.unflatten(-1, (queries, columns - 1)).narrow(-1, 0, num_keys)


def sinusoidal_distances(distances: Tensor, hidden_size: int) -> Tensor:
    """(distances, width) in float32: sines, then cosines, of ever longer periods; of what lies ahead, below zero."""
    speeds = DISTANCE_BASE ** -(torch.arange(0, hidden_size, 2, device=distances.device).double() / hidden_size)
    angles = distances[:, None] * speeds
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :hidden_size].float()
