"""Negative sampling (Mikolov et al. 2013) by chunk: one matrix product for all pairs, noise words shared by a chunk.

Noise words are weighted so that each pair has `negative` of them in expectation. An update is a gradient step on the loss
summed over pairs, at the vectors before the step.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .tables import ApplyUpdate, RowSource, StepUpdates
from .windows import Chunks, WindowMasks


class NegativeSampling(NamedTuple):
    """Output layer with a vector per word."""

    outputs: RowSource  # a row per word
    negative: int  # noise words per positive pair

    def skip_gram(
        self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool
    ) -> StepUpdates:
        """The center word predicts each of its context words."""
        (center, apply_center), (context, apply_context) = (
            _gather(inputs, chunks.center_ids),
            _gather(self.outputs, chunks.context_ids),
        )
        noise, apply_noise = _gather(self.outputs, chunks.noise_ids)
        context_mask, noise_weights = (
            window_masks.context_mask(chunks.extents),
            self._noise_weights(chunks, window_masks.context_counts(chunks.extents)),
        )
        positive_logits, noise_logits = torch.bmm(center, context.mT), torch.bmm(center, noise.mT)
        loss = _mean_loss(positive_logits, context_mask, noise_logits, noise_weights) if compute_loss else None
        positive_steps = positive_logits.neg_().sigmoid_().mul_(context_mask).mul_(lr)  # -lr * gradient, in place
        noise_steps = noise_logits.sigmoid_().mul_(noise_weights.mul_(-lr))
        center_update, context_update, noise_update = (
            torch.bmm(positive_steps, context).baddbmm_(noise_steps, noise),
            torch.bmm(positive_steps.mT, center),
            torch.bmm(noise_steps.mT, center),
        )
        return StepUpdates(
            [partial(apply_center, center_update)],
            [partial(apply_context, context_update), partial(apply_noise, noise_update)],
            loss,
        )

    def cbow(self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool) -> StepUpdates:
        """The mean of the context vectors predicts the center word."""
        (context, apply_context), (center, apply_center) = (
            _gather(inputs, chunks.context_ids),
            _gather(self.outputs, chunks.center_ids),
        )
        noise, apply_noise = _gather(self.outputs, chunks.noise_ids)
        mean_weights, has_context = (
            window_masks.mean_weights(chunks.extents),
            window_masks.context_counts(chunks.extents).clamp_(max=1),
        )
        noise_weights = self._noise_weights(chunks, has_context)
        hidden = torch.bmm(mean_weights, context)
        positive_logits, noise_logits = (hidden * center).sum(-1, keepdim=True), torch.bmm(hidden, noise.mT)
        loss = _mean_loss(positive_logits, has_context, noise_logits, noise_weights) if compute_loss else None
        positive_steps = positive_logits.neg_().sigmoid_().mul_(has_context).mul_(lr)  # -lr * gradient, in place
        noise_steps = noise_logits.sigmoid_().mul_(noise_weights.mul_(-lr))
        noise_update = torch.bmm(noise_steps.mT, hidden)
        context_update = torch.bmm(mean_weights.mT, center.mul_(positive_steps).baddbmm_(noise_steps, noise))
        return StepUpdates(
            [partial(apply_context, context_update)],
            [partial(apply_center, hidden.mul_(positive_steps)), partial(apply_noise, noise_update)],
            loss,
        )

    def _noise_weights(self, chunks: Chunks, pair_counts: Tensor) -> Tensor:
        return pair_counts * (self.negative / chunks.noise_ids.shape[1])


def _gather(source: RowSource, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
    """Rows (chunks, n, vector_size) of ids (chunks, n), and a function that applies an update of the same shape."""
    rows, apply_update = source.gather(ids.flatten())
    return rows.view(*ids.shape, -1), lambda update: apply_update(update.flatten(0, 1))


def _mean_loss(positive_logits: Tensor, pair_weights: Tensor, noise_logits: Tensor, noise_weights: Tensor) -> Tensor:
    """Mean over pairs of -log sigmoid(positive) - sum over noise words of log sigmoid(-noise)."""
    total = (F.logsigmoid(positive_logits) * pair_weights).sum() + (F.logsigmoid(-noise_logits) * noise_weights).sum()
    return -total / pair_weights.sum().clamp(min=1)
