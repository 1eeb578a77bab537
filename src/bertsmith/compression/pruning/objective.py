"""The objective of a run that prunes: masks set by the schedule, then the loss of the task, with a teacher or without."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...model.batch import Inputs
from ...model.model import Model
from ...train.objective import Batch, Loss
from ..recovery.run import FRACTION_DONE
from ..recovery.teacher import TeacherObjective
from .masks import Pruner
from .schedule import CubicSchedule


@dataclass(frozen=True)
class PruningObjective:
    """The loss of the masked model.

    Masks follow from the scores and the fraction of the run done, so a resumed run has the same ones: scores and masks are part
    of the model's state, and each training batch carries the fraction.
    """

    base_objective: TeacherObjective
    pruners: Sequence[Pruner]
    amount: float
    schedule: CubicSchedule

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if model.training:
            self.set_masks(float(batch.targets[FRACTION_DONE]))
        return self.base_objective.compute_loss(model, batch, recurrent_state)

    def set_masks(self, fraction_done: float) -> None:
        """The masks at this point of the run. Before `schedule.begin` all are 1, from `schedule.end` on they stay."""
        for pruner in self.pruners if fraction_done >= self.schedule.begin else ():
            pruner.update(self.schedule.sparsity(self.amount, fraction_done), is_final=fraction_done >= self.schedule.end)
