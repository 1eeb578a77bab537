"""What the trainer is given and gives back: a batch goes in, sums over its targets come out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from torch import Tensor


class BatchLike(Protocol):
    """Anything that can move to a device and knows its own size without asking the device."""

    @property
    def target_counts(self) -> Mapping[str, int]:
        """Targets of each part of the loss, known from the data alone: `{"words": 1234, "next": 56}`."""

    @property
    def num_tokens(self) -> int:
        """Tokens read by the model."""

    def to(self, device: Any) -> Self: ...


@dataclass(frozen=True)
class Loss:
    """Sums, never means: the trainer divides each part once by all targets of the update, so that each weighs the same.

    What is minimised is the sum over parts of (sum of the part / its targets). `report` holds named sums and counts
    for the log, such as `{"accuracy": (right, seen)}`. `carry` is handed to the next loss unread, and saved.
    """

    parts: dict[str, Tensor]
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    recurrent_state: tuple[Tensor, ...] = ()


class Objective(Protocol):
    """The one thing that makes pre-training, fine-tuning and distillation differ."""

    def compute_loss(self, model: Any, batch: Any, recurrent_state: tuple[Tensor, ...]) -> Loss: ...


def check_counts(loss: Loss, batch: BatchLike) -> Loss:
    """A part without its count would be divided by nothing."""
    if missing := set(loss.parts) - set(batch.target_counts):
        raise ValueError(f"the loss has parts {sorted(missing)} that batch.counts {sorted(batch.target_counts)} does not count")
    return loss
