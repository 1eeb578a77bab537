"""Position embeddings: sinusoidal (Vaswani et al. 2017), rotary (Su et al. 2021), axial (Kitaev et al. 2020), and the
sinusoidal distances and relative shift of Transformer-XL (Dai et al. 2019)."""

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

SINUSOID_BASE = 10000.0  # the longest period over 2 pi
DISTANCE_BASE = 10000.0  # the same for the distances of Transformer-XL


def sinusoidal_positions(num_positions: int, hidden_size: int) -> Tensor:
    """(positions, hidden_size) float32: sin(p / 10000^(2i / hidden_size)) in column 2i, cos of the same in column 2i + 1."""
    even_columns = torch.arange(0, hidden_size, 2, dtype=torch.float64)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] / SINUSOID_BASE ** (even_columns / hidden_size)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :hidden_size].float()


class RotaryEmbedding(nn.Module):
    """RoPE (Su et al. 2021), rotating element i of a head's first half with element i of its second half."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        if head_dim % 2:
            raise UserError(f"RoPE needs an even head size, not {head_dim}; change model.mixer.num_attention_heads")
        self.head_dim, self.theta = head_dim, theta
        self.cos_sin_cache = torch.empty(0, head_dim)  # computed on demand, not in the state dict

    def cos_sin(self, max_seqlen: int, device: torch.device) -> Tensor:
        """(positions, head_dim) float32 for at least `max_seqlen` positions: head_dim / 2 cosines, then as many sines."""
        if torch.compiler.is_exporting():  # the graph has the table if it is long enough for any input, else computes it
            from torch.fx.experimental.symbolic_shapes import guard_or_false  # takes a quarter of a second

            is_cached = guard_or_false(max_seqlen <= len(self.cos_sin_cache))
            return self.cos_sin_cache if is_cached else self._compute_cos_sin(max_seqlen, device)
        if len(self.cos_sin_cache) < max_seqlen or self.cos_sin_cache.device != device:
            with torch.inference_mode(False):  # it may be reused in training
                self.cos_sin_cache = self._compute_cos_sin(1 << (max_seqlen - 1).bit_length(), device)
        return self.cos_sin_cache

    def _compute_cos_sin(self, num_positions: int, device: torch.device) -> Tensor:
        inv_freq = self.theta ** -(torch.arange(0, self.head_dim, 2, device=device).double() / self.head_dim)
        angles = torch.arange(num_positions, device=device)[:, None] * inv_freq
        return torch.cat([angles.cos(), angles.sin()], 1).float()


def apply_rope(qkv: Tensor, cos_sin: Tensor, positions: Tensor, num_heads: int) -> Tensor:
    """(tokens, 3 * hidden_size), with queries and keys rotated by their positions; positions: (tokens,)."""
    if kernels.supports(qkv):
        from .kernels.rope import apply_rope_inplace as in_place

        return in_place(qkv, cos_sin, positions, num_heads)
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).unbind(-3)
    cos, sin = cos_sin[positions][:, None].to(qkv.dtype).chunk(2, -1)
    return torch.stack([rotate(q, cos, sin), rotate(k, cos, sin), v], -3).flatten(-3)


def shift_rope(x: Tensor, cos_sin: Tensor, offsets: Tensor) -> Tensor:
    """x (.., heads, head_dim) rotated by `offsets` (..) positions, which may be negative; |offset| < len(cos_sin).

    Elements beyond the rotated cos_sin.shape[1] are padding of the heads, and returned as zeros.
    """
    is_negative = offsets < 0
    distance = torch.where(is_negative, -offsets, offsets)  # OpenVINO 2026.4 overwrites the input of abs()
    cos, sin = cos_sin[distance][..., None, :].chunk(2, -1)
    sin = torch.where(is_negative[..., None, None], -sin, sin)
    rotated, padding = rotate(x[..., : cos_sin.shape[1]], cos, sin), x.shape[-1] - cos_sin.shape[1]
    return (F.pad(rotated, (0, padding)) if padding else rotated).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation of each pair of elements i and i + head_dim / 2 of (.., head_dim) by an angle; cos, sin: (.., head_dim / 2)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class AxialPositionsConfig(Config, frozen=True):
    """Axial position embeddings (Kitaev et al. 2020): a million positions from two tables of a thousand rows."""

    shape: Annotated[
        tuple[PosInt, ...], Meta(min_length=1), "positions along each axis; their product is at least max_position_embeddings"
    ] = (64, 64)
    widths: Annotated[
        tuple[PosInt, ...] | None, "embedding size of each axis, together that of the tokens; none: about equal"
    ] = None

    def build(self, num_positions: int, hidden_size: int) -> "AxialPositionEmbeddings":
        if prod(self.shape) < num_positions:
            raise UserError(f"model.position_embedding_type.shape={list(self.shape)} has {prod(self.shape):,} positions, fewer "
                           f"than model.max_position_embeddings={num_positions:,}; make it larger")  # fmt: skip
        num_axes = len(self.shape)
        dims = self.widths or tuple(
            (hidden_size * (axis + 1)) // num_axes - (hidden_size * axis) // num_axes for axis in range(num_axes)
        )
        if len(dims) != num_axes or sum(dims) != hidden_size or not all(dims):
            raise UserError(
                f"model.position_embedding_type.widths={list(dims)} must be {num_axes} sizes with a sum of {hidden_size}"
            )
        return AxialPositionEmbeddings(self.shape, dims)


class AxialPositionEmbeddings(nn.Module):
    """Concatenation of one embedding for each axis, the position being an index into a grid of `shape`."""

    def __init__(self, shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.axes = nn.ModuleList(nn.Embedding(size, dim) for size, dim in zip(shape, dims, strict=True))

    def forward(self, position: Tensor) -> Tensor:
        """(tokens,) -> (tokens, hidden_size); neighbouring positions differ in the last axis."""
        axis_embeddings: list[Tensor] = []
        for size, axis in zip(reversed(self.shape), reversed(self.axes), strict=True):
            table: Tensor = axis.weight  # type: ignore[assignment]
            axis_embeddings.append(F.embedding(position % size, to_compute_dtype(table)))
            position = position // size
        return torch.cat(axis_embeddings[::-1], -1)


def rel_shift(scores: Tensor, num_keys: int) -> Tensor:
    """(.., queries, 1 + distances) -> (.., queries, keys), a view: the relative shift of Dai et al. 2019, appendix B.

    Column 1 + c is the score at distance `largest - c`, the largest distance being that of the last query to the first
    key; column 0 is unused. Each query is one step further from a key than the query before it, so the flattened scores
    read in rows that are one shorter have key j in column j. Keys nearer than the smallest distance get undefined values
    and must be masked.
    """
    num_queries, num_columns = scores.shape[-2:]
    rows = scores.flatten(-2).narrow(-1, num_queries, num_queries * (num_columns - 1))
    return rows.unflatten(-1, (num_queries, num_columns - 1)).narrow(-1, 0, num_keys)


def sinusoidal_distances(distances: Tensor, hidden_size: int) -> Tensor:
    """(distances, hidden_size) float32: sines, then cosines, of distance / 10000^(2i / hidden_size); keys ahead of the query
    have negative distances."""
    inv_freq = DISTANCE_BASE ** -(torch.arange(0, hidden_size, 2, device=distances.device).double() / hidden_size)
    angles = distances[:, None] * inv_freq
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :hidden_size].float()
