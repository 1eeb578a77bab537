"""What goes into a model, and what comes out."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from .packing import Layout
from .segment_memory import SegmentMemory


@dataclass(frozen=True)
class Inputs:
    input_ids: Tensor  # (tokens,): every sequence, one after another
    layout: Layout
    token_type_ids: Tensor | None = None  # (tokens,): sentence A or B
    embedding_delta: Tensor | None = None  # (tokens, width of the tables): added to the embedded tokens, before their norm
    output_indices: Tensor | None = None  # (rows,): the tokens whose last hidden states are asked for, if not all are
    memory: SegmentMemory | None = None  # of what stood before the sequences, for models that remember

    def to(self, device: Any) -> "Inputs":
        others = {
            "token_type_ids": self.token_type_ids,
            "embedding_delta": self.embedding_delta,
            "output_indices": self.output_indices,
        }
        moved: dict[str, Any] = {name: t.to(device, non_blocking=True) for name, t in others.items() if t is not None}
        memory = None if self.memory is None else self.memory.to(device)
        tokens, layout = self.input_ids.to(device, non_blocking=True), self.layout.to(device)
        return replace(self, input_ids=tokens, layout=layout, memory=memory, **moved)


@dataclass(frozen=True)
class Batch:
    inputs: Inputs
    targets: dict[str, Tensor] = field(default_factory=dict)  # private to the objective that made it
    target_counts: dict[str, int] = field(default_factory=dict)  # how many targets each part of the loss is divided by

    @property
    def num_tokens(self) -> int:
        return self.inputs.input_ids.shape[0]

    def to(self, device: Any) -> "Batch":
        targets = {name: target.to(device, non_blocking=True) for name, target in self.targets.items()}
        return Batch(self.inputs.to(device), targets, self.target_counts)
