"""Distillation of a model that was made smaller: the original teaches it, layer by layer (CoFi, Xia et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor

from ...config import Config, NonNegFloat, PosFloat
from ...model.batch import Inputs
from ...model.model import Model
from ...objectives.supervised import Supervised
from ...objectives.task_objective import TaskObjective
from ...train.objective import Batch, Loss

SOFT_LABELS, HIDDEN_STATES = "soft_label", "hidden_state"  # parts of the loss


class RecoveryLosses(Config, frozen=True):
    """Weights of the losses, each a mean over its targets; 0: not computed."""

    hard_labels: Annotated[NonNegFloat, "loss of the labels"] = 1.0
    soft_labels: Annotated[NonNegFloat, "KL of the original and the smaller model's predictions, times temperature^2"] = 1.0
    temperature: Annotated[PosFloat, "temperature of soft_labels"] = 2.0
    hidden_states: Annotated[
        NonNegFloat, "squared error of each layer's output, relative to the mean square of the original model's"
    ] = 1.0

    @property
    def uses_teacher(self) -> bool:
        return bool(self.soft_labels or self.hidden_states)


@dataclass(frozen=True)
class Teacher:
    """The original model, in eval mode, and which of its layers stands for each layer of the smaller one (0: the lowest)."""

    model: Model
    layers: Sequence[int]

    @torch.no_grad()
    def run(self, objective: Supervised, batch: Batch[Inputs]) -> tuple[Tensor, list[Tensor]]:
        """Its logits, and its output of each layer of the smaller model, (tokens, hidden_size)."""
        states: list[Tensor] = []
        hidden_states = self.model(batch.inputs, states)
        return objective.compute_outputs(self.model, batch, hidden_states).float(), [states[layer + 1] for layer in self.layers]


def distillation_loss(
    objective: Supervised, teacher: Teacher, losses: RecoveryLosses, model: Model, batch: Batch[Inputs]
) -> Loss:
    """The weighted losses of the labels, of the teacher's predictions and of its hidden states."""
    states: list[Tensor] = []
    hidden_states = model(batch.inputs, states)
    logits = objective.compute_outputs(model, batch, hidden_states).float()
    teacher_logits, teacher_states = teacher.run(objective, batch)
    loss = objective.loss_from_logits(logits, batch, objective.transitions(model))
    parts = {"task": losses.hard_labels * loss.parts["task"]}
    if losses.soft_labels:
        parts[SOFT_LABELS] = losses.soft_labels * objective.soft_labels(logits, teacher_logits, batch, losses.temperature)
    if losses.hidden_states:
        errors = [relative_error(*pair) for pair in zip(states[1:], teacher_states, strict=True)]
        parts[HIDDEN_STATES] = losses.hidden_states * torch.stack(errors).mean()
    return Loss(parts, loss.metrics)


def relative_error(states: Tensor, teacher_states: Tensor) -> Tensor:
    """Scalar, summed over tokens: mean squared error over dimensions / the teacher's mean square in the batch."""
    states, teacher_states = states.float(), teacher_states.float()
    return (states - teacher_states).square().mean(-1).sum() / teacher_states.square().mean().clamp(min=1e-12)


@dataclass(frozen=True)
class TeacherObjective:
    """The loss of the task, with that of a teacher if there is one; in eval mode that of the task alone."""

    base_objective: TaskObjective
    losses: RecoveryLosses
    teacher: Teacher | None = None

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training or self.teacher is None or not isinstance(self.base_objective, Supervised):
            return self.base_objective.compute_loss(model, cast(Any, batch), recurrent_state)
        return distillation_loss(self.base_objective, self.teacher, self.losses, model, batch)
