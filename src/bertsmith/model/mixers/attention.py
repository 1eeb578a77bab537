"""Every token looks at every other of its sequence: BERT, GPT and the original Transformer."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import Chance, Count, Positive, Variant
from ...errors import BadInput
from ..packing import Layout
from ..position_bias import Apart, DistanceConfig, Relative
from ..positions import Rotary, turned
from .base import Heads, Mixer

Past = tuple[Tensor, ...]  # what a mixer keeps of a text that goes on; here keys and values, (rows, heads, place, width)


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
        self.common = _common(config)
        self.owner: tuple[DenseAttention, ...] = ()  # of the distance, if another block is; a tuple, so it has it alone

    def share(self, first: Mixer) -> None:
        if self.common and isinstance(first, DenseAttention) and first.common == self.common:
            self.distance, self.owner = None, (first,)

    @property
    def borrowed(self) -> list[nn.Parameter]:
        return [weight for owner in self.owner if owner.distance for weight in owner.distance.parameters()]

    @property
    def apart(self) -> Apart | None:
        return self.owner[0].distance if self.owner else self.distance

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.mixed(x, layout, self.causal)

    def mixed(self, x: Tensor, layout: Layout, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        turns = self.rotary.turns(layout.longest, x.device) if self.rotary else None
        heads = self.project.heads
        return self.project.out(layout.mix(self.project.qkv(x), heads, turns, causal, dropout, self.apart))

    def step(self, x: Tensor, past: Past | None, place: int) -> tuple[Tensor, Past]:
        """(rows, width): of one more token a text, at its place, and what it leaves for the next."""
        qkv, heads = self.project.qkv(x), self.project.heads
        if self.rotary:
            places = torch.full((x.shape[0],), place, device=x.device)
            qkv = turned(qkv, self.rotary.turns(place + 1, x.device), places, heads)
        q, k, v = qkv.unflatten(-1, (3, heads, 1, -1)).unbind(1)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        leaning = self.apart(torch.arange(-place, 1, device=x.device))[:, None].to(q.dtype) if self.apart else None
        return self.project.out(F.scaled_dot_product_attention(q, k, v, leaning).flatten(1)), (k, v)


def _common(config: Dense) -> tuple[Relative, int, bool] | None:
    """What two mixers must have alike to read one table of distances; None: it has no table, or keeps it for itself."""
    shared = isinstance(config.distance, Relative) and config.distance.shared
    return (config.distance, config.heads, config.causal) if shared else None  # type: ignore[return-value]
