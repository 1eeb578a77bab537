"""The interface between the trainer and objectives: a batch goes in, summed losses come out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from torch import Tensor


class BatchLike(Protocol):
    """A batch that can move to a device and knows its counts on the host."""

    @property
    def target_counts(self) -> Mapping[str, int]:
        """Number of targets of each part of the loss, such as `{"mlm": 1234, "nsp": 56}`."""

    @property
    def num_tokens(self) -> int:
        """Number of input tokens."""

    def to(self, device: Any) -> Self: ...


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
    """Computes the loss of a batch: what differs between pre-training, fine-tuning and distillation."""

    def compute_loss(self, model: Any, batch: Any, recurrent_state: tuple[Tensor, ...]) -> Loss: ...


def check_counts(loss: Loss, batch: BatchLike) -> Loss:
    """Returns `loss`; raises ValueError if the batch has no target count for one of its parts."""
    if missing := set(loss.parts) - set(batch.target_counts):
        raise ValueError(
            f"the loss has parts {sorted(missing)} that batch.target_counts {sorted(batch.target_counts)} does not count"
        )
    return loss
