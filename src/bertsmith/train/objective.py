"""What the trainer knows of a model and its data: a batch goes into an objective, summed losses come out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from torch import Tensor

from ..device import copy_to_device


class BatchInputs(Protocol):
    """Inputs of the model, which can move to a device."""

    @property
    def num_tokens(self) -> int: ...

    def to(self, device: Any) -> Self: ...


InputsT = TypeVar("InputsT", bound=BatchInputs)


@dataclass(frozen=True)
class Batch(Generic[InputsT]):
    """What a micro-batch reads: inputs of the model, targets of the objective, and their counts on the host.

    targets: tensors by name, read only by the objective.
    target_counts: number of targets of each part of the loss, such as `{"mlm": 1234, "nsp": 56}`.
    """

    inputs: InputsT
    targets: dict[str, Tensor] = field(default_factory=dict)
    target_counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.inputs.num_tokens

    def to(self, device: Any) -> Self:
        targets = {name: copy_to_device(target, device) for name, target in self.targets.items()}
        return replace(self, inputs=self.inputs.to(device), targets=targets)


@dataclass(frozen=True)
class Loss:
    """Losses of a batch as sums over targets, not means.

    The trainer minimizes sum over parts of (sum of the part / number of its targets in the whole update), so that gradient
    accumulation and data parallelism weigh every target the same.

    parts: scalar tensor by part of the loss, such as `{"mlm": ..., "nsp": ...}`; logged as mlm_loss and nsp_loss.
    metrics: (sum, count) by name for the log, such as `{"accuracy": (num_correct, num_targets)}`; no name ends in _loss.
    recurrent_state: passed to the next `compute_loss` and saved in checkpoints.
    """

    parts: dict[str, Tensor]
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    recurrent_state: tuple[Tensor, ...] = ()


class Objective(Protocol):
    """Computes the loss of a batch: what differs between pre-training and fine-tuning."""

    def compute_loss(self, model: Any, batch: Any, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        """Loss summed over the targets of each part."""
        ...


def check_counts(loss: Loss, batch: Batch[Any]) -> Loss:
    """Returns `loss`; raises ValueError if the batch has no target count for one of its parts."""
    if missing := set(loss.parts) - set(batch.target_counts):
        raise ValueError(
            f"the loss has parts {sorted(missing)} that batch.target_counts {sorted(batch.target_counts)} does not count"
        )
    return loss
