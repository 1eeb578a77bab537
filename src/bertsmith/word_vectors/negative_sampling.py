"""Negative sampling a chunk at a time: all products of its words at once, and noise that its words share.

Each pair has `ratio` wrong words in expectation (Mikolov et al. 2013): the chunk's are weighted so. A step goes down the
gradient of the sum over pairs, at the vectors as they were before it.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .tables import ApplyUpdate, RowSource, StepUpdates
from .windows import Chunks, WindowMasks


class NegativeSampling(NamedTuple):
    outputs: RowSource  # a row for every word
    negative: int  # wrong words for each right one

    def skip_gram(
        self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool
    ) -> StepUpdates:
        """The word in the middle foretells each that it sees."""
        (u, put_u), (v, put_v) = _gather(inputs, chunks.center_ids), _gather(self.outputs, chunks.context_ids)
        z, put_z = _gather(self.outputs, chunks.noise_ids)
        near, times = (
            window_masks.context_mask(chunks.extents),
            self._noise_weights(chunks, window_masks.context_counts(chunks.extents)),
        )
        right, wrong = torch.bmm(u, v.mT), torch.bmm(u, z.mT)
        cost = _mean_loss(right, near, wrong, times) if compute_loss else None
        right.neg_().sigmoid_().mul_(near).mul_(lr)
        wrong.sigmoid_().mul_(times.mul_(-lr))
        change_u, change_v, change_z = torch.bmm(right, v).baddbmm_(wrong, z), torch.bmm(right.mT, u), torch.bmm(wrong.mT, u)
        return StepUpdates([partial(put_u, change_u)], [partial(put_v, change_v), partial(put_z, change_z)], cost)

    def cbow(self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool) -> StepUpdates:
        """The mean of what it sees foretells the word in the middle."""
        (u, put_u), (v, put_v) = _gather(inputs, chunks.context_ids), _gather(self.outputs, chunks.center_ids)
        z, put_z = _gather(self.outputs, chunks.noise_ids)
        mean, real = window_masks.mean_weights(chunks.extents), window_masks.context_counts(chunks.extents).clamp_(max=1)
        times = self._noise_weights(chunks, real)
        hidden = torch.bmm(mean, u)
        right, wrong = (hidden * v).sum(-1, keepdim=True), torch.bmm(hidden, z.mT)
        cost = _mean_loss(right, real, wrong, times) if compute_loss else None
        right.neg_().sigmoid_().mul_(real).mul_(lr)
        wrong.sigmoid_().mul_(times.mul_(-lr))
        change_z = torch.bmm(wrong.mT, hidden)
        change_u = torch.bmm(mean.mT, v.mul_(right).baddbmm_(wrong, z))
        return StepUpdates([partial(put_u, change_u)], [partial(put_v, hidden.mul_(right)), partial(put_z, change_z)], cost)

    def _noise_weights(self, chunks: Chunks, pair_counts: Tensor) -> Tensor:
        return pair_counts * (self.negative / chunks.noise_ids.shape[1])


def _gather(source: RowSource, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
    """(chunks, ids, width) of (chunks, ids)."""
    rows, put = source.gather(ids.flatten())
    return rows.view(*ids.shape, -1), lambda change: put(change.flatten(0, 1))


def _mean_loss(positive_logits: Tensor, pair_weights: Tensor, noise_logits: Tensor, noise_weights: Tensor) -> Tensor:
    total = (F.logsigmoid(positive_logits) * pair_weights).sum() + (F.logsigmoid(-noise_logits) * noise_weights).sum()
    return -total / pair_weights.sum().clamp(min=1)
