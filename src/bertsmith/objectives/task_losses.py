"""Losses of a task head by kind: cross entropy, binary cross entropy, squared error, start and end positions, options, CRF.

A task names its kind (`Task.loss`). Each loss is summed over targets, and has the divergence of two outputs that R-Drop adds
and the soft-label loss of distillation.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.batch import Inputs
from ..model.heads.crf import CRFBatch
from ..model.packing import segment_means
from ..tasks.base import LossKind
from ..train.objective import Batch, Loss

IGNORE_INDEX = -100


class TaskLoss:
    """Cross entropy of the labels; targets: `label`, (rows,), with IGNORE_INDEX where a token has none."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def compute(self, logits: Tensor, batch: Batch[Inputs], transitions: Tensor | None = None) -> Loss:
        """Loss of the logits (rows, outputs) and accuracy; `transitions` are the scores of a CRF."""
        labels, choices = batch.targets["label"], self.choice_logits(logits, batch)
        loss = F.cross_entropy(choices, labels, weight=self.class_weights(logits), ignore_index=IGNORE_INDEX, reduction="sum")
        return Loss({"task": loss}, self._accuracy(choices, batch))

    def choice_logits(self, logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        """(rows, choices): logits of one softmax per row."""
        return logits

    def divergence(self, logits: Tensor, other_logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        """Symmetric KL divergence of two outputs for a batch, summed over targets."""
        divergence = symmetric_kl(self.choice_logits(logits, batch), self.choice_logits(other_logits, batch))
        return divergence[batch.targets["label"] != IGNORE_INDEX].sum()

    def soft_labels(self, logits: Tensor, teacher_logits: Tensor, batch: Batch[Inputs], temperature: float) -> Tensor:
        """Soft-label loss of the teacher's outputs for a batch, summed over targets (Hinton et al. 2015)."""
        loss = soft_label_loss(self.choice_logits(logits, batch), self.choice_logits(teacher_logits, batch), temperature)
        return loss[batch.targets["label"] != IGNORE_INDEX].sum()

    def class_weights(self, like: Tensor) -> Tensor | None:
        weights = self.task.class_weight_vector()
        return None if weights is None else torch.from_numpy(weights).to(like)

    def _accuracy(self, choices: Tensor, batch: Batch[Inputs]) -> dict[str, tuple[Tensor | float, Tensor | float]]:
        return {"accuracy": ((choices.argmax(-1) == batch.targets["label"]).sum(), batch.target_counts["task"])}


class BinaryCrossEntropy(TaskLoss):
    """Mean of one binary cross entropy per output; targets: `label`, (rows, outputs) of 0 and 1."""

    def compute(self, logits: Tensor, batch: Batch[Inputs], transitions: Tensor | None = None) -> Loss:
        labels, weights = batch.targets["label"], self.class_weights(logits)
        loss = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights, reduction="sum")
        return Loss({"task": loss / self.task.num_outputs})

    def divergence(self, logits: Tensor, other_logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        logits, other_logits = (torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, other_logits))
        return symmetric_kl(logits, other_logits).sum() / self.task.num_outputs

    def soft_labels(self, logits: Tensor, teacher_logits: Tensor, batch: Batch[Inputs], temperature: float) -> Tensor:
        """Of the two outcomes of each output."""
        logits, teacher_logits = (torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, teacher_logits))
        return soft_label_loss(logits, teacher_logits, temperature).sum() / self.task.num_outputs


class SquaredError(TaskLoss):
    """Squared error of the first output; targets: `label`, (rows,)."""

    def compute(self, logits: Tensor, batch: Batch[Inputs], transitions: Tensor | None = None) -> Loss:
        return Loss({"task": F.mse_loss(logits[:, 0], batch.targets["label"], reduction="sum")})

    def divergence(self, logits: Tensor, other_logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        """Squared error."""
        return F.mse_loss(logits, other_logits, reduction="sum")

    def soft_labels(self, logits: Tensor, teacher_logits: Tensor, batch: Batch[Inputs], temperature: float) -> Tensor:
        """Squared error of the teacher's number; it has no temperature."""
        return F.mse_loss(logits[:, 0], teacher_logits[:, 0], reduction="sum")


class SpanCrossEntropy(TaskLoss):
    """Mean cross entropy of start and end token; targets: `start` and `end`, (sequences,)."""

    def compute(self, logits: Tensor, batch: Batch[Inputs], transitions: Tensor | None = None) -> Loss:
        positions = torch.cat([batch.targets["start"], batch.targets["end"]])
        return Loss({"task": F.cross_entropy(self.choice_logits(logits, batch), positions, reduction="sum") / 2})

    def choice_logits(self, logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        """(2 * sequences, length): start and then end positions."""
        layout = batch.inputs.layout
        padded = layout.pad(logits).masked_fill(~layout.padding_mask()[..., None], float("-inf"))
        return torch.cat(padded.unbind(-1))

    def divergence(self, logits: Tensor, other_logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        return symmetric_kl(self.choice_logits(logits, batch), self.choice_logits(other_logits, batch)).sum() / 2

    def soft_labels(self, logits: Tensor, teacher_logits: Tensor, batch: Batch[Inputs], temperature: float) -> Tensor:
        """Mean of the start and the end position."""
        choices = self.choice_logits(logits, batch), self.choice_logits(teacher_logits, batch)
        return soft_label_loss(*choices, temperature).sum() / 2


class OptionCrossEntropy(TaskLoss):
    """Cross entropy over the options of an example, one output each; targets: `label`, (examples,)."""

    def choice_logits(self, logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        """(examples, options), from the mean over the windows of an option."""
        windows = batch.targets.get("windows")
        return _pad_options((logits if windows is None else segment_means(logits, windows))[:, 0], batch.targets["group"])


class CRFLoss(TaskLoss):
    """Negative log-likelihood of a linear-chain CRF; the target count is tokens, as without a CRF."""

    def compute(self, logits: Tensor, batch: Batch[Inputs], transitions: Tensor | None = None) -> Loss:
        assert transitions is not None, "a CRF loss needs the transitions of its model"
        return Loss({"task": self._nll(logits, batch, transitions)}, self._accuracy(logits, batch))

    def _nll(self, logits: Tensor, batch: Batch[Inputs], transitions: Tensor) -> Tensor:
        labels, seq_id = batch.targets["label"], batch.inputs.layout.seq_id
        labelled, transition_mask = (labels != IGNORE_INDEX).nonzero().squeeze(1), self.task.transition_mask()
        if not len(labelled):
            return logits.sum() * 0
        allowed = None if transition_mask is None else torch.from_numpy(transition_mask.copy()).to(logits.device)
        crf_batch = CRFBatch.from_tokens(logits[labelled], labels[labelled], seq_id[labelled], batch.targets["has_ends"])
        return crf_batch.nll(transitions, allowed).sum()


TASK_LOSSES: dict[LossKind, type[TaskLoss]] = {
    "cross_entropy": TaskLoss,
    "binary_cross_entropy": BinaryCrossEntropy,
    "mse": SquaredError,
    "span": SpanCrossEntropy,
    "choice": OptionCrossEntropy,
    "crf": CRFLoss,
}


def soft_label_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """(..., choices) twice -> (...): T^2 KL(softmax(teacher / T) || softmax(student / T)) (Hinton et al. 2015, section 2.1).

    T^2 makes the size of the gradient independent of T; choices with logit -inf contribute 0.
    """
    is_impossible = teacher_logits == float("-inf")
    log_p, log_q = ((x.float() / temperature).log_softmax(-1).masked_fill(is_impossible, 0.0) for x in (teacher_logits, logits))
    return temperature**2 * (log_p.exp().masked_fill(is_impossible, 0.0) * (log_p - log_q)).sum(-1)


def symmetric_kl(logits: Tensor, other_logits: Tensor) -> Tensor:
    """(..., choices) twice -> (...): (KL(p||q) + KL(q||p)) / 2; choices with logit -inf contribute 0."""
    is_impossible = logits == float("-inf")
    log_p, log_q = (x.log_softmax(-1).masked_fill(is_impossible, 0.0) for x in (logits, other_logits))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2


def _pad_options(logits: Tensor, group: Tensor) -> Tensor:
    """(options,) -> (examples, max options), padded with -inf. group: (options,), the example of each option."""
    counts = torch.bincount(group)
    first_option = counts.cumsum(0) - counts
    padded = logits.new_full((counts.shape[0], int(counts.max())), float("-inf"))
    return padded.index_put((group, torch.arange(len(group), device=group.device) - first_option[group]), logits)
