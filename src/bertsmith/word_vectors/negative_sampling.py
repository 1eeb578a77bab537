"""Negative sampling a chunk at a time: all products of its words at once, and noise that its words share.

Each pair has `ratio` wrong words in expectation (Mikolov et al. 2013): the chunk's are weighted so. A step goes down the
gradient of the sum over pairs, at the vectors as they were before it.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .tables import Put, Source, Step
from .windows import Bands, Chunks


class Negatives(NamedTuple):
    outputs: Source  # a row for every word
    ratio: int  # wrong words for each right one

    def skip_gram(self, chunks: Chunks, bands: Bands, inputs: Source, rate: float, told: bool) -> Step:
        """The word in the middle foretells each that it sees."""
        (u, put_u), (v, put_v) = _opened(inputs, chunks.centres), _opened(self.outputs, chunks.around)
        z, put_z = _opened(self.outputs, chunks.noise)
        near, times = bands.near(chunks.sides), self._times(chunks, bands.counted(chunks.sides))
        right, wrong = torch.bmm(u, v.mT), torch.bmm(u, z.mT)
        cost = _mean(right, near, wrong, times) if told else None
        right.neg_().sigmoid_().mul_(near).mul_(rate)
        wrong.sigmoid_().mul_(times.mul_(-rate))
        change_u, change_v, change_z = torch.bmm(right, v).baddbmm_(wrong, z), torch.bmm(right.mT, u), torch.bmm(wrong.mT, u)
        return Step([partial(put_u, change_u)], [partial(put_v, change_v), partial(put_z, change_z)], cost)

    def cbow(self, chunks: Chunks, bands: Bands, inputs: Source, rate: float, told: bool) -> Step:
        """The mean of what it sees foretells the word in the middle."""
        (u, put_u), (v, put_v) = _opened(inputs, chunks.around), _opened(self.outputs, chunks.centres)
        z, put_z = _opened(self.outputs, chunks.noise)
        mean, real = bands.averaged(chunks.sides), bands.counted(chunks.sides).clamp_(max=1)
        times = self._times(chunks, real)
        hidden = torch.bmm(mean, u)
        right, wrong = (hidden * v).sum(-1, keepdim=True), torch.bmm(hidden, z.mT)
        cost = _mean(right, real, wrong, times) if told else None
        right.neg_().sigmoid_().mul_(real).mul_(rate)
        wrong.sigmoid_().mul_(times.mul_(-rate))
        change_z = torch.bmm(wrong.mT, hidden)
        change_u = torch.bmm(mean.mT, v.mul_(right).baddbmm_(wrong, z))
        return Step([partial(put_u, change_u)], [partial(put_v, hidden.mul_(right)), partial(put_z, change_z)], cost)

    def _times(self, chunks: Chunks, pairs: Tensor) -> Tensor:
        return pairs * (self.ratio / chunks.noise.shape[1])


def _opened(source: Source, ids: Tensor) -> tuple[Tensor, Put]:
    """(chunks, ids, width) of (chunks, ids)."""
    rows, put = source.open(ids.flatten())
    return rows.view(*ids.shape, -1), lambda change: put(change.flatten(0, 1))


def _mean(right: Tensor, pairs: Tensor, wrong: Tensor, times: Tensor) -> Tensor:
    total = (F.logsigmoid(right) * pairs).sum() + (F.logsigmoid(-wrong) * times).sum()
    return -total / pairs.sum().clamp(min=1)
