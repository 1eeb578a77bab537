"""Every token looks at every other of its sequence: BERT, GPT and the original Transformer."""

from typing import Annotated

from torch import Tensor

from ...config import Chance, Count, Variant
from ..layout import Layout
from .base import Heads, Mixer


class Dense(Variant, frozen=True):
    heads: Annotated[Count, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[Chance, "on attention weights: 0.1 in the paper; above 0 leaves flash attention for a slower path"] = 0.0

    def build(self, width: int) -> Mixer:
        return DenseAttention(self, width)


class DenseAttention(Mixer):
    def __init__(self, config: Dense, width: int) -> None:
        super().__init__()
        self.causal, self.dropout, self.project = config.causal, config.dropout, Heads(width, config.heads)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.project(x)
        dropout = self.dropout if self.training else 0.0
        return self.project.join(layout.attend(q, k, v, causal=self.causal, dropout=dropout))
