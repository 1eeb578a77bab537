"""Multi-head self-attention over the whole sequence (Vaswani et al. 2017): BERT, GPT and the original Transformer."""

from typing import Annotated, Literal

import msgspec
import torch
from torch import Tensor

from ...config import PosFloat, PosInt, Probability
from ...errors import UserError
from ..kv_cache import LayerKVCache
from ..packing import Layout, prefix_lm_mask
from ..position_bias import PositionBias, PositionBiasConfig, ShawConfig, ShawEmbeddings, T5BiasConfig, expand_bias
from ..positions import RotaryEmbedding, apply_rope
from .base import BaseMixerConfig, LayerState, Mixer, QKVProjection, masked_softmax
from .separate_directions import SeparateDirections


class Attention(BaseMixerConfig, frozen=True, tag="attention"):
    """Full multi-head self-attention, bidirectional or causal, with optional RoPE or position bias."""

    num_attention_heads: Annotated[PosInt, "number of attention heads"] = 12
    attention_head_size: Annotated[PosInt | None, "size of a head (head_dim); none: hidden_size / num_attention_heads"] = None
    causal: Annotated[bool, "attend only to earlier tokens (left to right)"] = False
    directions: Annotated[
        Literal["joint", "apart"],
        "joint: one stack; apart: one stack left to right and one right to left, of half the hidden_size each (biLM)",
    ] = "joint"
    attention_dropout: Annotated[
        Probability, "dropout on attention weights (0.1 in BERT); above 0, no flash attention (slower)"
    ] = 0.0
    bias: Annotated[bool, "bias terms in the linear layers"] = True
    rope_theta: Annotated[PosFloat | None, "base of RoPE, such as 10000; with model.position_embedding_type=none"] = None
    position_bias: Annotated[
        PositionBiasConfig | None,
        "relative positions: alibi, t5 or shaw (of keys and values) or none; with position_embedding_type=none",
    ] = None

    def head_dim(self, hidden_size: int) -> int:
        """Size of a head."""
        return self.attention_head_size or hidden_size // self.num_attention_heads

    def build(self, hidden_size: int) -> Mixer:
        if self.directions == "joint":
            return SelfAttention(self, hidden_size)
        if self.causal:
            raise UserError("model.mixer.directions=apart is causal in each direction; leave out model.mixer.causal")
        one_direction = msgspec.structs.replace(self, causal=True, directions="joint")
        return SeparateDirections(one_direction.build, hidden_size)

    def tie_weights(self, mixer: Mixer, first_mixer: Mixer) -> None:
        """Share the T5 bias table with the first layer, in each direction."""
        if isinstance(mixer, SeparateDirections) and isinstance(first_mixer, SeparateDirections):
            for direction, first_direction in zip(mixer.mixers, first_mixer.mixers, strict=True):
                self.tie_weights(direction, first_direction)
        if not isinstance(mixer, SelfAttention) or not isinstance(first_mixer, SelfAttention):
            return
        if mixer.bias_tie_key and mixer.bias_tie_key == first_mixer.bias_tie_key:
            mixer.position_bias, mixer.tied_to = None, (first_mixer,)


class SelfAttention(Mixer):
    """softmax(QK^T / sqrt(head_dim) + position bias) V within each sequence."""

    def __init__(self, config: Attention, hidden_size: int) -> None:
        super().__init__()
        self.causal, self.dropout = config.causal, config.attention_dropout
        self.projections = QKVProjection(hidden_size, config.num_attention_heads, config.bias, config.attention_head_size)
        head_dim = config.head_dim(hidden_size)
        self.rotary = RotaryEmbedding(head_dim, config.rope_theta) if config.rope_theta else None
        if config.rope_theta and config.position_bias:
            raise UserError("RoPE or a position bias, not both; leave out model.mixer.rope_theta or model.mixer.position_bias")
        self.position_bias: PositionBias | None = None
        self.shaw: ShawEmbeddings | None = None
        if isinstance(config.position_bias, ShawConfig):
            self.shaw = config.position_bias.build(head_dim)
        elif config.position_bias:
            self.position_bias = config.position_bias.build(config.num_attention_heads, config.causal)
        self.bias_tie_key = _bias_tie_key(config)
        self.tied_to: tuple[SelfAttention, ...] = ()  # whose position bias it uses; a tuple, so that it is no submodule

    @property
    def tied_position_bias(self) -> PositionBias | None:
        return self.tied_to[0].position_bias if self.tied_to else self.position_bias

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        assert state is None or isinstance(state, LayerKVCache)
        return self.attend(x, layout, self.causal, state)

    def attend(self, x: Tensor, layout: Layout, causal: bool, cache: LayerKVCache | None = None) -> Tensor:
        """`forward` with a causal mask or without; with `cache`, x continues the sequences in it."""
        qkv, num_heads, bias = self.projections.qkv(x), self.projections.num_heads, self.tied_position_bias
        if self.shaw is not None:
            return self.projections.output(self._attend_shaw(self.shaw, qkv, layout, causal, cache))
        cos_sin = self.rotary.cos_sin(layout.num_positions, x.device) if self.rotary else None
        if cache is not None:
            return self.projections.output(cache.attend_qkv(qkv, layout, num_heads, cos_sin, causal, bias))
        dropout = self.dropout if self.training else 0.0
        return self.projections.output(layout.attend_qkv(qkv, num_heads, cos_sin, causal, dropout, bias))

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        qkv = self.projections.qkv(x)
        if self.shaw is not None:
            q, k = self._padded_queries_and_keys(qkv, layout)
            return self.shaw.weights(q, k, *self._dense_positions(layout, self.causal))
        return masked_softmax(*self.attention_scores(qkv, layout))

    def attention_scores(self, qkv: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Scores before the softmax, (sequences, heads, max_seqlen, max_seqlen), and the mask of keys that a query may see.

        qkv: (tokens, 3 * hidden_size), the projected queries, keys and values. Not with Shaw's relative positions.
        """
        q, k = self._padded_queries_and_keys(qkv, layout)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if self.tied_position_bias:
            scores = scores + expand_bias(
                self.tied_position_bias.bias_by_distance(layout.max_seqlen, qkv.device), layout.max_seqlen
            )
        return scores, self._dense_positions(layout, self.causal)[1]

    def _padded_queries_and_keys(self, qkv: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """(sequences, heads, max_seqlen, head_dim) each, with RoPE applied."""
        num_heads = self.projections.num_heads
        if self.rotary:
            qkv = apply_rope(qkv, self.rotary.cos_sin(layout.max_seqlen, qkv.device), layout.position, num_heads)
        q, k = (layout.pad(t).transpose(1, 2) for t in qkv.unflatten(-1, (3, num_heads, -1)).unbind(-3)[:2])
        return q, k

    def _attend_shaw(
        self, shaw: ShawEmbeddings, qkv: Tensor, layout: Layout, causal: bool, cache: LayerKVCache | None
    ) -> Tensor:
        """(tokens, hidden_size): attention with Shaw's relative positions, over padded sequences."""
        qkv = qkv.unflatten(-1, (3, self.projections.num_heads, -1))
        q = layout.pad(qkv[:, 0]).transpose(1, 2)
        positions, mask = self._dense_positions(layout, causal)
        if cache is None or layout.past_lengths is None:
            k, v = (layout.pad(t).transpose(1, 2) for t in (qkv[:, 1], qkv[:, 2]))
            if cache is not None:
                cache.extend(qkv[:, 1:], layout)
        else:
            k, v = cache.extend(qkv[:, 1:], layout)
            positions = torch.arange(layout.num_positions, device=q.device) - layout.pad(layout.position)[..., None]
            mask = (positions <= 0)[:, None]
        out = shaw(q, k, v, positions, mask, self.dropout if self.training else 0.0)
        return layout.unpad(out.transpose(1, 2)).flatten(1)

    def _dense_positions(self, layout: Layout, causal: bool) -> tuple[Tensor, Tensor]:
        """Relative positions (1, queries, keys), and which keys a query may see, (sequences, 1, 1 or queries, keys)."""
        position, mask = torch.arange(layout.max_seqlen, device=layout.seq_id.device), layout.padding_mask()[:, None, None]
        if causal:
            prefix = layout.seq_id.new_zeros(1) if layout.prefix_lengths is None else layout.prefix_lengths.to(mask.device)
            mask = mask & prefix_lm_mask(layout.max_seqlen, prefix[:, None, None])[:, None]
        return (position - position[:, None])[None], mask

    def build_cache(self, max_length: int) -> LayerKVCache:
        return LayerKVCache(max_length)


def _bias_tie_key(config: Attention) -> tuple[T5BiasConfig, int, bool] | None:
    """What two mixers must have in common to share one T5 bias table; None: no table, or one per layer."""
    is_shared = isinstance(config.position_bias, T5BiasConfig) and config.position_bias.shared
    return (config.position_bias, config.num_attention_heads, config.causal) if is_shared else None  # type: ignore[return-value]
