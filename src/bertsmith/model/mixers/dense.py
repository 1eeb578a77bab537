"""Every token looks at every other of its sequence: BERT, GPT and the original Transformer."""

from typing import Annotated

from torch import Tensor

from ...config import Chance, Count, Positive, Variant
from ...errors import BadInput
from ..apart import Apart, DistanceConfig, Relative
from ..layout import Layout
from ..rotary import Rotary
from .base import Heads, Mixer


class Dense(Variant, frozen=True):
    heads: Annotated[Count, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[Chance, "on attention weights: 0.1 in the paper; above 0 leaves flash attention for a slower path"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = True
    rotary: Annotated[Positive | None, "longest period of rotary positions, such as 10000; with model.table=false"] = None
    distance: Annotated[
        DistanceConfig | None, "what scores gain by distance: alibi or relative (T5); with model.table=false; none: nothing"
    ] = None

    def build(self, width: int) -> Mixer:
        return DenseAttention(self, width)


class DenseAttention(Mixer):
    def __init__(self, config: Dense, width: int) -> None:
        super().__init__()
        self.causal, self.dropout = config.causal, config.dropout
        self.project = Heads(width, config.heads, config.bias)
        self.rotary = Rotary(width // config.heads, config.rotary) if config.rotary else None
        if config.rotary and config.distance:
            raise BadInput(
                "positions are turned or scores lean on distance, not both; leave out model.mixer.rotary or distance"
            )
        self.distance = config.distance.build(config.heads, config.causal) if config.distance else None
        self.common = isinstance(config.distance, Relative) and config.distance.shared
        self.owner: tuple[DenseAttention, ...] = ()  # of the distance, if another block is; a tuple, so it has it alone

    def share(self, first: Mixer) -> None:
        if self.common and isinstance(first, DenseAttention) and first.common:
            self.distance, self.owner = None, (first,)

    @property
    def apart(self) -> Apart | None:
        return self.owner[0].distance if self.owner else self.distance

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.sees(x, layout, self.causal)

    def sees(self, x: Tensor, layout: Layout, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        turns = self.rotary.turns(layout.longest, x.device) if self.rotary else None
        heads = self.project.heads
        return self.project.out(layout.mix(self.project.qkv(x), heads, turns, causal, dropout, self.apart))
