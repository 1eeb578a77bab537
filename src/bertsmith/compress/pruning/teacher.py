"""Distillation while pruning: the unpruned model teaches the one that is pruned (CoFi, Xia et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from ...config import Config, NonNegFloat, PosFloat
from ...model.batch import Inputs
from ...model.model import Model
from ...objectives.supervised import Supervised
from ...objectives.task_losses import IGNORE_INDEX
from ...train.objective import Batch, Loss

SOFT_LABELS, HIDDEN_STATES = "soft_label", "hidden_state"  # parts of the loss


class PruningLosses(Config, frozen=True):
    """Weights of the losses, each a mean over its targets; 0: not computed."""

    hard_labels: Annotated[NonNegFloat, "loss of the labels"] = 1.0
    soft_labels: Annotated[NonNegFloat, "KL of the unpruned and the pruned model's predictions, times temperature^2"] = 1.0
    temperature: Annotated[PosFloat, "temperature of soft_labels"] = 2.0
    hidden_states: Annotated[
        NonNegFloat, "squared error of each layer's output, relative to the mean square of the unpruned model's"
    ] = 1.0

    @property
    def uses_teacher(self) -> bool:
        return bool(self.soft_labels or self.hidden_states)


@dataclass(frozen=True)
class Teacher:
    """The unpruned model, in eval mode, and which of its layers stands for each layer of the pruned one (0: the lowest)."""

    model: Model
    layers: Sequence[int]

    @torch.no_grad()
    def run(self, objective: Supervised, batch: Batch[Inputs]) -> tuple[Tensor, list[Tensor]]:
        """Its logits, and its output of each layer of the pruned model, (tokens, hidden_size)."""
        states: list[Tensor] = []
        hidden_states = self.model(batch.inputs, states)
        return objective.compute_outputs(self.model, batch, hidden_states).float(), [states[layer + 1] for layer in self.layers]


def distillation_loss(
    objective: Supervised, teacher: Teacher, losses: PruningLosses, model: Model, batch: Batch[Inputs]
) -> Loss:
    """The weighted losses of the labels, of the teacher's predictions and of its hidden states."""
    states: list[Tensor] = []
    hidden_states = model(batch.inputs, states)
    logits = objective.compute_outputs(model, batch, hidden_states).float()
    teacher_logits, teacher_states = teacher.run(objective, batch)
    loss = objective.loss_from_logits(logits, batch, objective.transitions(model))
    parts = {"task": losses.hard_labels * loss.parts["task"]}
    if losses.soft_labels:
        divergence = soft_label_divergence(objective, logits, teacher_logits, batch, losses.temperature)
        parts[SOFT_LABELS] = losses.soft_labels * divergence
    if losses.hidden_states:
        errors = [relative_error(*pair) for pair in zip(states[1:], teacher_states, strict=True)]
        parts[HIDDEN_STATES] = losses.hidden_states * torch.stack(errors).mean()
    return Loss(parts, loss.metrics)


def soft_label_divergence(
    objective: Supervised, logits: Tensor, teacher_logits: Tensor, batch: Batch[Inputs], temperature: float
) -> Tensor:
    """Scalar, summed over targets: T^2 KL(teacher || model) of the task's choices; squared error in regression."""
    if objective.task.loss == "mse":
        return F.mse_loss(logits, teacher_logits, reduction="sum")
    if objective.task.loss == "binary_cross_entropy":  # one choice of two per output
        pair = [torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, teacher_logits)]
        return soft_label_loss(pair[0], pair[1], temperature).sum() / objective.task.num_outputs
    choices, teacher_choices = (objective.loss.choice_logits(x, batch) for x in (logits, teacher_logits))
    rows = soft_label_loss(choices, teacher_choices, temperature)
    if objective.task.loss == "span":  # start and end
        return rows.sum() / 2
    return rows[batch.targets["label"] != IGNORE_INDEX].sum()


def soft_label_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """(..., choices) twice -> (...): T^2 KL(softmax(teacher / T) || softmax(logits / T)) (Hinton et al. 2015)."""
    is_impossible = teacher_logits == float("-inf")
    log_p, log_q = ((x / temperature).log_softmax(-1).masked_fill(is_impossible, 0.0) for x in (teacher_logits, logits))
    return temperature**2 * (log_p.exp().masked_fill(is_impossible, 0.0) * (log_p - log_q)).sum(-1)


def relative_error(states: Tensor, teacher_states: Tensor) -> Tensor:
    """Scalar, summed over tokens: mean squared error over dimensions / the teacher's mean square in the batch."""
    states, teacher_states = states.float(), teacher_states.float()
    return (states - teacher_states).square().mean(-1).sum() / teacher_states.square().mean().clamp(min=1e-12)
