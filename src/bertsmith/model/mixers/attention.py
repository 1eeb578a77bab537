"""Every token looks at every other of its sequence: BERT, GPT and the original Transformer."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosFloat, PosInt, Probability, Variant
from ...errors import UserError
from ..packing import Layout
from ..position_bias import PositionBias, PositionBiasConfig, T5BiasConfig
from ..positions import RotaryEmbedding, apply_rope
from .base import Mixer, QKVProjection

LayerCache = tuple[Tensor, ...]  # what a mixer keeps of a text that goes on; here keys and values, (rows, heads, place, width)


class Attention(Variant, frozen=True, tag="dense"):
    heads: Annotated[PosInt, "attention heads"] = 12
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[
        Probability, "on attention weights: 0.1 in the paper; above 0 leaves flash attention for a slower path"
    ] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = True
    rotary: Annotated[PosFloat | None, "longest period of rotary positions, such as 10000; with model.table=false"] = None
    distance: Annotated[
        PositionBiasConfig | None, "what scores gain by distance: alibi or relative (T5); with model.table=false; none: nothing"
    ] = None

    def build(self, hidden_size: int) -> Mixer:
        return SelfAttention(self, hidden_size)


class SelfAttention(Mixer):
    def __init__(self, config: Attention, hidden_size: int) -> None:
        super().__init__()
        self.causal, self.dropout = config.causal, config.dropout
        self.project = QKVProjection(hidden_size, config.heads, config.bias)
        self.rotary = RotaryEmbedding(hidden_size // config.heads, config.rotary) if config.rotary else None
        if config.rotary and config.distance:
            raise UserError(
                "positions are turned or scores lean on distance, not both; leave out model.mixer.rotary or distance"
            )
        self.distance = config.distance.build(config.heads, config.causal) if config.distance else None
        self.bias_tie_key = _bias_tie_key(config)
        self.tied_to: tuple[SelfAttention, ...] = ()  # of the distance, if another block is; a tuple, so it has it alone

    def tie_weights(self, first_mixer: Mixer) -> None:
        if self.bias_tie_key and isinstance(first_mixer, SelfAttention) and first_mixer.bias_tie_key == self.bias_tie_key:
            self.distance, self.tied_to = None, (first_mixer,)

    @property
    def tied_parameters(self) -> list[nn.Parameter]:
        return [weight for owner in self.tied_to if owner.distance for weight in owner.distance.parameters()]

    @property
    def position_bias(self) -> PositionBias | None:
        return self.tied_to[0].distance if self.tied_to else self.distance

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.attend(x, layout, self.causal)

    def attend(self, x: Tensor, layout: Layout, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        turns = self.rotary.cos_sin(layout.max_seqlen, x.device) if self.rotary else None
        heads = self.project.num_heads
        return self.project.out(layout.attend_qkv(self.project.qkv(x), heads, turns, causal, dropout, self.position_bias))

    def decode_step(self, x: Tensor, cache: LayerCache | None, position: int) -> tuple[Tensor, LayerCache]:
        """(rows, width): of one more token a text, at its place, and what it leaves for the next."""
        qkv, heads = self.project.qkv(x), self.project.num_heads
        if self.rotary:
            places = torch.full((x.shape[0],), position, device=x.device)
            qkv = apply_rope(qkv, self.rotary.cos_sin(position + 1, x.device), places, heads)
        q, k, v = qkv.unflatten(-1, (3, heads, 1, -1)).unbind(1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        leaning = (
            self.position_bias(torch.arange(-position, 1, device=x.device))[:, None].to(q.dtype) if self.position_bias else None
        )
        return self.project.out(F.scaled_dot_product_attention(q, k, v, leaning).flatten(1)), (k, v)


def _bias_tie_key(config: Attention) -> tuple[T5BiasConfig, int, bool] | None:
    """What two mixers must have alike to read one table of distances; None: it has no table, or keeps it for itself."""
    shared = isinstance(config.distance, T5BiasConfig) and config.distance.shared
    return (config.distance, config.heads, config.causal) if shared else None  # type: ignore[return-value]
