"""The objective of a run that prunes: masks set by the schedule, then the loss of the task, with a teacher or without."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...model.batch import Inputs
from ...model.model import Model
from ...objectives.supervised import ExampleBatches, Supervised
from ...objectives.task_objective import TaskObjective
from ...train.objective import Batch, Loss
from .masks import Pruner
from .schedule import CubicSchedule
from .teacher import HIDDEN_STATES, SOFT_LABELS, PruningLosses, Teacher, distillation_loss

FRACTION_DONE = "fraction_done"  # target of a batch: fraction of the run done


@dataclass(frozen=True)
class PruningObjective:
    """The loss of the masked model.

    Masks follow from the scores and the fraction of the run done, so a resumed run has the same ones: scores and masks are part
    of the model's state, and each training batch carries the fraction.
    """

    base_objective: TaskObjective
    pruners: Sequence[Pruner]
    amount: float
    schedule: CubicSchedule
    losses: PruningLosses
    teacher: Teacher | None = None

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.base_objective.compute_loss(model, batch, recurrent_state)
        self.set_masks(float(batch.targets[FRACTION_DONE]))
        if self.teacher is None or not isinstance(self.base_objective, Supervised):
            return self.base_objective.compute_loss(model, batch, recurrent_state)
        return distillation_loss(self.base_objective, self.teacher, self.losses, model, batch)

    def set_masks(self, fraction_done: float) -> None:
        """The masks at this point of the run. Before `schedule.begin` all are 1, from `schedule.end` on they stay."""
        for pruner in self.pruners if fraction_done >= self.schedule.begin else ():
            pruner.update(self.schedule.sparsity(self.amount, fraction_done), is_final=fraction_done >= self.schedule.end)


def build_train_batches(batches: ExampleBatches) -> Callable[[int, float], Batch[Inputs]]:
    """The batches with the fraction of the run done, and with counts of the teacher's targets."""

    def get_batch(k: int, fraction_done: float) -> Batch[Inputs]:
        batch = batches(k, fraction_done)
        counts = {SOFT_LABELS: batch.target_counts["task"], HIDDEN_STATES: batch.num_tokens}
        fraction = torch.tensor(fraction_done, dtype=torch.float64)
        return replace(
            batch, targets={**batch.targets, FRACTION_DONE: fraction}, target_counts={**batch.target_counts, **counts}
        )

    return get_batch
