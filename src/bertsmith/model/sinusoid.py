"""Positions as waves: a fixed vector for every place, sines and cosines of ever longer periods."""

import torch
from torch import Tensor

LONGEST = 10000.0  # of the periods, over 2 pi


def sinusoid(positions: int, width: int) -> Tensor:
    """(positions, width): sin(place / 10000^(2i / width)) in column 2i, and the cosine of the same in column 2i + 1."""
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] / LONGEST ** (even / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].float()
