"""What a model remembers of the text before: of every layer that does, what its mixer read there."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .packing import Layout

if TYPE_CHECKING:
    from .mixers import Mixer


class LayerMemory(NamedTuple):
    """What stood before each sequence, as one layer read it; no gradient goes back there."""

    hidden_states: Tensor  # (sequences, remembered, width): the latest last
    num_seen: Tensor  # (sequences,): how much stood before in all; of the rows, so many of the latest are real

    def padding_mask(self) -> Tensor:
        """(sequences, remembered) bool"""
        remembered = self.hidden_states.shape[1]
        return torch.arange(remembered, device=self.num_seen.device) >= remembered - self.num_seen[:, None]


@dataclass(frozen=True)
class SegmentMemory:
    """Goes into a model among its inputs, and fills with what the next batch of as many sequences will want."""

    num_seen: Tensor  # (sequences,): tokens that stood before each
    layers: tuple[Tensor, ...] = ()  # the rows of each layer; none before the first batch
    keep_all: bool = False  # nothing is forgotten that a mixer could still see
    next_layers: list[Tensor] = field(default_factory=list)  # those of the next batch

    @classmethod
    def empty(cls, num_sequences: int, device: torch.device, keep_all: bool = False) -> "SegmentMemory":
        return cls(torch.zeros(num_sequences, dtype=torch.int64, device=device), keep_all=keep_all)

    def to(self, device: Any) -> "SegmentMemory":
        return SegmentMemory(self.num_seen.to(device), tuple(rows.to(device) for rows in self.layers), self.keep_all)

    def get_layer(self, layer: int) -> LayerMemory | None:
        return LayerMemory(self.layers[layer], self.num_seen) if self.layers and self.layers[layer].shape[1] else None

    def append_layer(self, x: Tensor, layout: Layout, layer_memory: LayerMemory | None, mixer: "Mixer") -> None:
        """Of the layer whose mixer read `x`: as many positions as it remembers, or can still see."""
        self.next_layers.append(
            _last_positions(x.detach(), layout, layer_memory, mixer.max_past_len if self.keep_all else mixer.mem_len)
        )

    def advance(self, layout: Layout) -> "SegmentMemory":
        """Of the sequences that go on from these."""
        return SegmentMemory(self.num_seen + layout.padding_mask().sum(1), tuple(self.next_layers), self.keep_all)


def _last_positions(x: Tensor, layout: Layout, layer_memory: LayerMemory | None, max_positions: int | None) -> Tensor:
    """(sequences, remembered, width): the last of what stood before each sequence and of itself."""
    rows = layout.pad(x) if layer_memory is None else torch.cat([layer_memory.hidden_states.to(x.dtype), layout.pad(x)], 1)
    wide = rows.shape[1] if max_positions is None else min(max_positions, rows.shape[1])
    if layout.is_uniform:
        return rows[:, rows.shape[1] - wide :].clone()  # or what is forgotten would stay in memory
    ends = layout.padding_mask().sum(1, keepdim=True) + (0 if layer_memory is None else layer_memory.hidden_states.shape[1])
    where = (ends - wide + torch.arange(wide, device=x.device)).clamp(min=0)
    return rows.gather(1, where[..., None].expand(-1, -1, rows.shape[2]))
