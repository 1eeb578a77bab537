"""Segment-level recurrence (Dai et al. 2019): each layer's cached inputs of the preceding segments, without gradients."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .packing import Layout

if TYPE_CHECKING:
    from .mixers.base import MemoryMixer


class LayerMemory(NamedTuple):
    """Memory of one layer: its inputs at the positions before each sequence, detached."""

    hidden_states: Tensor  # (sequences, memory length, hidden_size), oldest first; left-padded
    num_seen: Tensor  # (sequences,): tokens before each sequence; the last so many rows are valid

    def padding_mask(self) -> Tensor:
        """(sequences, memory length) bool: True on valid rows."""
        memory_length = self.hidden_states.shape[1]
        return torch.arange(memory_length, device=self.num_seen.device) >= memory_length - self.num_seen[:, None]


@dataclass(frozen=True)
class SegmentMemory:
    """Memory of all layers: an input of the model, which also collects the memory for the next segments in `next_layers`."""

    num_seen: Tensor  # (sequences,): tokens before each sequence
    layers: tuple[Tensor, ...] = ()  # of each layer, (sequences, memory length, hidden_size); empty at first
    keep_all: bool = False  # keep everything a mixer can attend to, not only mem_len (generation)
    next_layers: dict[int, Tensor] = field(default_factory=dict)  # memory for the next batch, filled by the forward pass

    @classmethod
    def empty(cls, num_sequences: int, device: torch.device, keep_all: bool = False) -> "SegmentMemory":
        """Before the first segment."""
        return cls(torch.zeros(num_sequences, dtype=torch.int64, device=device), keep_all=keep_all)

    def to(self, device: Any) -> "SegmentMemory":
        return SegmentMemory(self.num_seen.to(device), tuple(states.to(device) for states in self.layers), self.keep_all)

    def get_layer(self, layer: int) -> LayerMemory | None:
        """Memory of a layer; None if it has none yet."""
        return LayerMemory(self.layers[layer], self.num_seen) if self.layers and self.layers[layer].shape[1] else None

    def set_next_layer(self, layer: int, x: Tensor, layout: Layout, mixer: "MemoryMixer | None") -> None:
        """Store the input `x` of a layer's mixer: its last mem_len positions, or with keep_all all it can attend to.

        `mixer` is None if that layer's mixer attends to no memory; nothing is stored then.
        """
        max_positions = 0 if mixer is None else mixer.max_past_len if self.keep_all else mixer.mem_len
        layer_memory = self.get_layer(layer)
        past = None if layer_memory is None else layer_memory.hidden_states.to(x.dtype)
        self.next_layers[layer] = last_positions(x.detach(), layout, past, max_positions)

    def advance(self, layout: Layout) -> "SegmentMemory":
        """The memory for the segments that follow these sequences."""
        layers = tuple(self.next_layers[layer] for layer in range(len(self.next_layers)))
        return SegmentMemory(self.num_seen + layout.padding_mask().sum(1), layers, self.keep_all)

    def next_layout(self) -> Layout:
        """Layout of one new token for each row. Its position is 0: layers with memory count from the token itself."""
        return Layout.from_lengths([1] * len(self.num_seen)).to(self.num_seen.device)

    def select_rows(self, row_indices: Tensor) -> "SegmentMemory":
        """With the rows `row_indices`, which may drop and repeat rows."""
        layers = tuple(states.index_select(0, row_indices) for states in self.layers)
        return SegmentMemory(self.num_seen.index_select(0, row_indices), layers, self.keep_all)


def last_positions(x: Tensor, layout: Layout, past: Tensor | None, max_positions: int | None) -> Tensor:
    """(sequences, positions, hidden_size): last positions of each sequence, of `past` and x together; at most `max_positions`.

    x: (tokens, hidden_size); past: (sequences, past positions, hidden_size), right-aligned.
    """
    states = layout.pad(x) if past is None else torch.cat([past, layout.pad(x)], 1)
    num_kept = states.shape[1] if max_positions is None else min(max_positions, states.shape[1])
    if layout.is_uniform:
        return states[:, states.shape[1] - num_kept :].clone()  # a view would keep the dropped rows allocated
    ends = layout.padding_mask().sum(1, keepdim=True) + (0 if past is None else past.shape[1])
    indices = (ends - num_kept + torch.arange(num_kept, device=x.device)).clamp(min=0)
    return states.gather(1, indices[..., None].expand(-1, -1, states.shape[2]))
