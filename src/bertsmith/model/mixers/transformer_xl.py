"""Transformer-XL (Dai et al. 2019): relative attention over this segment and the cached hidden states of previous ones."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import NonNegInt, PosInt, Probability
from ..linear import Linear
from ..packing import Layout
from ..positions import rel_shift, sinusoidal_distances
from ..segment_memory import LayerMemory
from .base import BaseMixerConfig, LayerState, MemoryMixer, Mixer, QKVProjection, masked_softmax


class TransformerXL(BaseMixerConfig, frozen=True, tag="transformer-xl"):
    """Transformer-XL (Dai et al. 2019): attention over the segment and a memory of earlier ones.

    Scores A_ij = q_i.k_j + q_i.R(i - j) + u.k_j + v.R(i - j): R is a projection of sinusoids; u and v are learned.
    """

    num_attention_heads: Annotated[PosInt, "number of attention heads"] = 12
    causal: Annotated[bool, "attend only to earlier tokens (left to right)"] = True
    mem_len: Annotated[NonNegInt, "cached hidden states of previous segments, in tokens, during training"] = 128
    eval_mem_len: Annotated[NonNegInt | None, "the same in evaluation and generation; none: mem_len"] = None
    same_length: Annotated[bool, "every token attends to the same number of positions: mem_len, itself included"] = False
    clamp_len: Annotated[PosInt | None, "largest relative distance; further tokens are treated as this far; none: no limit"] = (
        None
    )
    tie_biases: Annotated[bool, "share the biases u and v among all layers"] = False
    attention_dropout: Annotated[Probability, "dropout on attention weights"] = 0.0
    bias: Annotated[bool, "bias terms in the linear layers"] = False

    @property
    def needs_streams(self) -> bool:
        return self.mem_len > 0

    def build(self, hidden_size: int) -> Mixer:
        return TransformerXLAttention(self, hidden_size)

    def tie_weights(self, mixer: Mixer, first_mixer: Mixer) -> None:
        """Share u and v with the first layer."""
        if self.tie_biases and isinstance(mixer, TransformerXLAttention) and isinstance(first_mixer, TransformerXLAttention):
            mixer.content_bias = mixer.position_bias = None
            mixer.tied_to = (first_mixer,)


class TransformerXLAttention(MemoryMixer):
    content_bias: nn.Parameter | None  # u: (heads, 1, head_dim)
    position_bias: nn.Parameter | None  # v, same shape

    def __init__(self, config: TransformerXL, hidden_size: int) -> None:
        super().__init__()
        self.config, self.hidden_size = config, hidden_size
        self.projections = QKVProjection(hidden_size, config.num_attention_heads, config.bias)
        self.relative_key = Linear(hidden_size, hidden_size, bias=False)
        head_dim = hidden_size // config.num_attention_heads
        self.content_bias, self.position_bias = (
            nn.Parameter(torch.zeros(config.num_attention_heads, 1, head_dim)) for _ in range(2)
        )
        self.tied_to: tuple[TransformerXLAttention, ...] = ()  # whose u and v it uses; a tuple, so that it is no submodule

    @property
    def mem_len(self) -> int:
        eval_mem_len = None if self.training else self.config.eval_mem_len
        return self.config.mem_len if eval_mem_len is None else eval_mem_len

    @property
    def max_past_len(self) -> int | None:
        return self.mem_len if self.config.same_length else None

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        assert state is None or isinstance(state, LayerMemory)
        q, k, v = (layout.pad(t) for t in self.projections(x))
        if state is not None:
            k, v = (
                torch.cat([past_rows, rows], 1)
                for past_rows, rows in zip(self.projections.project_kv(state.hidden_states.to(x.dtype)), (k, v), strict=True)
            )
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (sequences, heads, length, head_dim)
        scale, num_keys = q.shape[-1] ** -0.5, k.shape[2]
        u_bias, v_bias = self.content_and_position_bias(q)
        position_scores = rel_shift((q + v_bias) @ self.relative_keys(q, num_keys).mT, num_keys) * scale
        lowest = torch.finfo(position_scores.dtype).min  # not -inf: the window of a row of padding may have no token
        position_scores = position_scores.masked_fill(~self._attention_mask(layout, state)[:, None], lowest)
        dropout = self.config.attention_dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q + u_bias, k, v, position_scores, dropout_p=dropout)
        return self.projections.project_out(layout.unpad(out.transpose(1, 2)))

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        """Without a memory of earlier segments."""
        q, k = (layout.pad(t).transpose(1, 2) for t in self.projections(x)[:2])
        u_bias, v_bias = self.content_and_position_bias(q)
        position_scores = rel_shift((q + v_bias) @ self.relative_keys(q, k.shape[2]).mT, k.shape[2])
        scores = ((q + u_bias) @ k.mT + position_scores) * q.shape[-1] ** -0.5
        return masked_softmax(scores, self._attention_mask(layout, None)[:, None])

    def content_and_position_bias(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """u and v, each (heads, 1, head_dim), in the dtype of `like`."""
        mixer = self.tied_to[0] if self.tied_to else self
        assert mixer.content_bias is not None and mixer.position_bias is not None
        return mixer.content_bias.to(like.dtype), mixer.position_bias.to(like.dtype)

    def relative_keys(self, q: Tensor, num_keys: int) -> Tensor:
        """(heads, 1 + distances, head_dim): R(d), from one more than the largest distance down to the smallest."""
        min_distance = 0 if self.config.causal else 1 - q.shape[2]
        distances = torch.arange(min_distance, num_keys + 1, device=q.device).flip(0)
        if self.config.clamp_len is not None:
            distances = distances.clamp(-self.config.clamp_len, self.config.clamp_len)
        keys = self.relative_key(sinusoidal_distances(distances, self.hidden_size).to(q.dtype))
        return keys.unflatten(-1, (self.projections.num_heads, -1)).transpose(0, 1)

    def _attention_mask(self, layout: Layout, state: LayerMemory | None) -> Tensor:
        """(sequences, queries, keys) bool: True where a query may attend to a key."""
        padding_mask = layout.padding_mask()
        num_queries = padding_mask.shape[1]
        key_mask = padding_mask if state is None else torch.cat([state.padding_mask(), padding_mask], 1)
        num_keys = key_mask.shape[1]
        distances = (
            torch.arange(num_queries, device=padding_mask.device)[:, None]
            + (num_keys - num_queries)
            - torch.arange(num_keys, device=padding_mask.device)
        )
        max_distance = max(self.mem_len, 1) if self.config.same_length else num_keys
        in_range = distances < max_distance
        return key_mask[:, None] & (in_range & (distances >= 0) if self.config.causal else in_range)
