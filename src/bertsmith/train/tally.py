"""Named sums and counts, whose means are what a log shows."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .loss import Batch, Loss

PART = "loss."  # before the name of each part of the loss


class Tally:
    """Sums and counts on the host; adding two of them is exact where averaging means would not be."""

    def __init__(self, entries: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.entries: dict[str, tuple[float, float]] = {name: (a, b) for name, (a, b) in (entries or {}).items()}

    def add(self, other: "Tally") -> None:
        for name, (total, count) in other.entries.items():
            old_total, old_count = self.entries.get(name, (0.0, 0.0))
            self.entries[name] = (old_total + total, old_count + count)

    def finite(self) -> "Tally":
        """Without the sums that would spoil all that is added to them."""
        return Tally({name: pair for name, pair in self.entries.items() if all(map(math.isfinite, pair))})

    def means(self) -> dict[str, float]:
        """`loss` (the sum of its parts), then everything that was counted at least once."""
        means = {name: total / count for name, (total, count) in self.entries.items() if count}
        parts = [mean for name, mean in means.items() if name.startswith(PART)]
        return {"loss": sum(parts), **means} if parts else means


class Meter:
    """Sums and counts that may still be on their way through the device."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        old_total, old_count = self._held.get(name, (0.0, 0.0))
        self._held[name] = (old_total + _exact(total), old_count + _exact(count))

    def add_loss(self, loss: Loss, batch: Batch) -> None:
        for name, part in loss.parts.items():
            self.add(PART + name, part, batch.counts[name])
        for name, (total, count) in loss.report.items():
            self.add(name, total, count)

    def read(self) -> Tally:
        """All of it on the host, for one wait."""
        numbers = iter(_numbers([number for pair in self._held.values() for number in pair]))
        return Tally({name: (next(numbers), next(numbers)) for name in self._held})


def _exact(number: Tensor | float) -> Tensor | float:
    return number.detach().double().reshape(()) if isinstance(number, Tensor) else number


def _numbers(values: list[Tensor | float]) -> list[float]:
    held = [value for value in values if isinstance(value, Tensor)]
    device = next((value.device for value in held if value.is_cuda), torch.device("cpu"))
    read = iter(torch.stack([value.to(device) for value in held]).tolist()) if held else iter(())
    return [next(read) if isinstance(value, Tensor) else float(value) for value in values]
