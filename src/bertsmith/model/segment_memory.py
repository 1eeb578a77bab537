"""What a model remembers of the text before: of every layer that does, what its mixer read there."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .packing import Layout

if TYPE_CHECKING:
    from .mixers import Mixer


class Past(NamedTuple):
    """What stood before each sequence, as one layer read it; no gradient goes back there."""

    rows: Tensor  # (sequences, remembered, width): the latest last
    seen: Tensor  # (sequences,): how much stood before in all; of the rows, so many of the latest are real

    def real(self) -> Tensor:
        """(sequences, remembered) bool"""
        remembered = self.rows.shape[1]
        return torch.arange(remembered, device=self.seen.device) >= remembered - self.seen[:, None]


@dataclass(frozen=True)
class Memory:
    """Goes into a model among its inputs, and fills with what the next batch of as many sequences will want."""

    seen: Tensor  # (sequences,): tokens that stood before each
    layers: tuple[Tensor, ...] = ()  # the rows of each layer; none before the first batch
    whole: bool = False  # nothing is forgotten that a mixer could still see
    kept: list[Tensor] = field(default_factory=list)  # those of the next batch

    @classmethod
    def empty(cls, sequences: int, device: torch.device, whole: bool = False) -> "Memory":
        return cls(torch.zeros(sequences, dtype=torch.int64, device=device), whole=whole)

    def to(self, device: Any) -> "Memory":
        return Memory(self.seen.to(device), tuple(rows.to(device) for rows in self.layers), self.whole)

    def past(self, layer: int) -> Past | None:
        return Past(self.layers[layer], self.seen) if self.layers and self.layers[layer].shape[1] else None

    def keep(self, x: Tensor, layout: Layout, past: Past | None, mixer: "Mixer") -> None:
        """Of the layer whose mixer read `x`: as many positions as it remembers, or can still see."""
        self.kept.append(_latest(x.detach(), layout, past, mixer.sees if self.whole else mixer.remembers))

    def after(self, layout: Layout) -> "Memory":
        """Of the sequences that go on from these."""
        return Memory(self.seen + layout.real().sum(1), tuple(self.kept), self.whole)


def _latest(x: Tensor, layout: Layout, past: Past | None, positions: int | None) -> Tensor:
    """(sequences, remembered, width): the last of what stood before each sequence and of itself."""
    rows = layout.grid(x) if past is None else torch.cat([past.rows.to(x.dtype), layout.grid(x)], 1)
    wide = rows.shape[1] if positions is None else min(positions, rows.shape[1])
    if layout.even:
        return rows[:, rows.shape[1] - wide :].clone()  # or what is forgotten would stay in memory
    ends = layout.real().sum(1, keepdim=True) + (0 if past is None else past.rows.shape[1])
    where = (ends - wide + torch.arange(wide, device=x.device)).clamp(min=0)
    return rows.gather(1, where[..., None].expand(-1, -1, rows.shape[2]))
