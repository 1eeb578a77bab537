"""What goes into a model, and what comes out."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from .packing import Layout
from .segment_memory import Memory


@dataclass(frozen=True)
class Inputs:
    tokens: Tensor  # (tokens,): every sequence, one after another
    layout: Layout
    segments: Tensor | None = None  # (tokens,): sentence A or B
    nudge: Tensor | None = None  # (tokens, width of the tables): added to the embedded tokens, before their norm
    wanted: Tensor | None = None  # (rows,): the tokens whose last hidden states are asked for, if not all are
    memory: Memory | None = None  # of what stood before the sequences, for models that remember

    def to(self, device: Any) -> "Inputs":
        others = {"segments": self.segments, "nudge": self.nudge, "wanted": self.wanted}
        moved: dict[str, Any] = {name: t.to(device, non_blocking=True) for name, t in others.items() if t is not None}
        memory = None if self.memory is None else self.memory.to(device)
        tokens, layout = self.tokens.to(device, non_blocking=True), self.layout.to(device)
        return replace(self, tokens=tokens, layout=layout, memory=memory, **moved)


@dataclass(frozen=True)
class Batch:
    inputs: Inputs
    targets: dict[str, Tensor] = field(default_factory=dict)  # private to the objective that made it
    counts: dict[str, int] = field(default_factory=dict)  # how many targets each part of the loss is divided by

    @property
    def tokens(self) -> int:
        return self.inputs.tokens.shape[0]

    def to(self, device: Any) -> "Batch":
        targets = {name: target.to(device, non_blocking=True) for name, target in self.targets.items()}
        return Batch(self.inputs.to(device), targets, self.counts)
