"""Attention by distance: scores of a query against every distance, read off as scores against every key."""

import torch
from torch import Tensor

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
