"""Every token looks at every other of its sequence: BERT, GPT and the original Transformer."""

from typing import Annotated

from torch import Tensor

from ...config import Chance, Count, Positive, Variant
from ..layout import Layout
from ..rotary import Rotary
from .base import Heads, Mixer


class Dense(Variant, frozen=True):
    heads: Annotated[Count, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[Chance, "on attention weights: 0.1 in the paper; above 0 leaves flash attention for a slower path"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = True
    rotary: Annotated[Positive | None, "longest period of rotary positions, such as 10000; with model.table=false"] = None

    def build(self, width: int) -> Mixer:
        return DenseAttention(self, width)


class DenseAttention(Mixer):
    def __init__(self, config: Dense, width: int) -> None:
        super().__init__()
        self.causal, self.dropout = config.causal, config.dropout
        self.project = Heads(width, config.heads, config.bias)
        self.rotary = Rotary(width // config.heads, config.rotary) if config.rotary else None

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        turns = self.rotary.turns(layout.longest, x.device) if self.rotary else None
        return self.project.out(layout.mix(self.project.qkv(x), self.project.heads, turns, self.causal, dropout))
