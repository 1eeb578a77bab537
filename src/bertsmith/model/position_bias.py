"""Position biases: a term added to attention scores that depends on the distance between query and key.

ALiBi (Press et al. 2022) and T5's relative position bias (Raffel et al. 2020), and attention with such a bias: by
FlexAttention on a GPU, else by SDPA with an additive mask.
"""

import math
from abc import ABC, abstractmethod
from functools import cache
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import PosInt, Variant
from ..errors import UserError
from .packing import Layout, prefix_lm_mask
from .positions import rel_shift

FLEX_MIN_HEAD_DIM = 16  # smallest head_dim that FlexAttention takes


class AlibiConfig(Variant, frozen=True, tag="alibi"):
    """ALiBi (Press et al. 2022): bias -m * |distance|, with a fixed slope m for each head."""

    def build(self, num_heads: int, causal: bool) -> "PositionBias":
        return AlibiBias(num_heads)


class T5BiasConfig(Variant, frozen=True, tag="t5"):
    """T5's relative position bias (Raffel et al. 2020): a learned scalar for each head and each bucket of distances."""

    num_buckets: Annotated[PosInt, "number of distance buckets, half of them for each direction unless causal (32 in T5)"] = 32
    max_distance: Annotated[PosInt, "distance from which all fall into the last bucket (128 in T5)"] = 128
    shared: Annotated[bool, "share the first layer's bias among all layers (T5)"] = True

    def build(self, num_heads: int, causal: bool) -> "PositionBias":
        return T5Bias(self, num_heads, causal)


class ShawConfig(Variant, frozen=True, tag="shaw"):
    """Relative position representations (Shaw et al. 2018): learned vectors added to keys and values, by clipped distance."""

    clip: Annotated[PosInt, "distance from which all have the same vectors, in each direction (k in the paper: 16)"] = 16

    def build(self, head_dim: int) -> "ShawEmbeddings":
        return ShawEmbeddings(self.clip, head_dim)


PositionBiasConfig = AlibiConfig | T5BiasConfig | ShawConfig


class PositionBias(nn.Module, ABC):
    """Additive attention bias as a function of the relative position."""

    @abstractmethod
    def forward(self, relative_position: Tensor) -> Tensor:
        """(..) int64, key position - query position -> (heads, ..): bias of the attention score."""

    def bias_by_distance(self, max_seqlen: int, device: torch.device) -> Tensor:
        """(heads, 2 * max_seqlen - 1): bias of every relative position 1 - max_seqlen .. max_seqlen - 1."""
        return self(torch.arange(1 - max_seqlen, max_seqlen, device=device))


class ShawEmbeddings(nn.Module):
    """Attention with relative position representations a^K and a^V, shared by the heads of a layer (Shaw et al. 2018).

    e_ij = q_i (k_j + a^K_ij)^T / sqrt(head_dim), z_i = sum_j softmax(e)_ij (v_j + a^V_ij); a_ij is of j - i, clipped.
    """

    def __init__(self, clip: int, head_dim: int) -> None:
        super().__init__()
        self.clip = clip
        self.keys, self.values = nn.Embedding(2 * clip + 1, head_dim), nn.Embedding(2 * clip + 1, head_dim)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, relative_position: Tensor, mask: Tensor, dropout: float = 0.0) -> Tensor:
        """q (sequences, heads, queries, head_dim), k and v (sequences, heads, keys, head_dim) -> the shape of q."""
        probs = F.dropout(self.weights(q, k, relative_position, mask), dropout).to(v.dtype)
        # Keys at equal distances share one a^V: their weights are summed first, so that no (queries, keys, head_dim) is built.
        by_distance = probs.new_zeros(*probs.shape[:-1], 2 * self.clip + 1)
        by_distance = by_distance.scatter_add(-1, self._distance_ids(relative_position).expand_as(probs), probs)
        return probs @ v + by_distance @ self.values.weight.to(v.dtype)

    def weights(self, q: Tensor, k: Tensor, relative_position: Tensor, mask: Tensor) -> Tensor:
        """(sequences, heads, queries, keys) float32, of relative_position (sequences or 1, queries, keys), j - i."""
        by_distance = q @ self.keys.weight.to(q.dtype).mT
        ids = self._distance_ids(relative_position).expand(*q.shape[:-1], -1)
        scores = (q @ k.mT + by_distance.gather(-1, ids)) * q.shape[-1] ** -0.5
        return scores.float().masked_fill(~mask, float("-inf")).softmax(-1)

    def _distance_ids(self, relative_position: Tensor) -> Tensor:
        return (relative_position.clamp(-self.clip, self.clip) + self.clip)[:, None]


class AlibiBias(PositionBias):
    """bias[h] = -slope[h] * |relative position|."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)  # constant: not in the state dict

    def forward(self, relative_position: Tensor) -> Tensor:
        slopes = torch.tensor(self.slopes, device=relative_position.device).view(-1, *[1] * relative_position.ndim)
        return -slopes * relative_position.abs()


class T5Bias(PositionBias):
    """bias[h] = table[bucket(relative position), h]."""

    def __init__(self, config: T5BiasConfig, num_heads: int, causal: bool) -> None:
        super().__init__()
        num_directions, self.causal, self.max_distance = 1 if causal else 2, causal, config.max_distance
        self.max_exact = config.num_buckets // num_directions // 2
        if config.num_buckets % (2 * num_directions) or config.max_distance <= self.max_exact:
            raise UserError(
                f"model.mixer.position_bias.num_buckets={config.num_buckets} must be a multiple of {2 * num_directions}, "
                f"and max_distance={config.max_distance} more than {max(1, self.max_exact)}"
            )
        self.relative_attention_bias = nn.Embedding(config.num_buckets, num_heads)

    def forward(self, relative_position: Tensor) -> Tensor:
        return self.relative_attention_bias(self.relative_position_bucket(relative_position)).movedim(-1, 0)

    def relative_position_bucket(self, relative_position: Tensor) -> Tensor:
        """Bucket of each relative position: one per distance below `max_exact`, then logarithmic up to `max_distance`."""
        distance = (-relative_position).clamp(min=0) if self.causal else relative_position.abs()
        log_steps = (
            (distance.clamp(min=1) / self.max_exact).log() / math.log(self.max_distance / self.max_exact) * self.max_exact
        )
        log_bucket = (self.max_exact + log_steps.long()).clamp(max=2 * self.max_exact - 1)
        bucket = torch.where(distance < self.max_exact, distance, log_bucket)
        return bucket if self.causal else bucket + 2 * self.max_exact * (relative_position > 0)


def alibi_slopes(num_heads: int) -> list[float]:
    """Slopes 2^(-8 i / heads), 1/2 .. 1/256 for 8 heads; if heads is no power of two, the rest are every second slope of
    twice the next lower power (Press et al. 2022, as in their code)."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    return slopes + [2.0 ** (-4 * i / power) for i in range(1, 2 * (num_heads - power), 2)]


def attend_with_bias(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, position_bias: PositionBias, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """softmax(q k^T / sqrt(head_dim) + bias) v within each sequence; q, k, v and result: (tokens, heads, head_dim)."""
    distance_bias = position_bias.bias_by_distance(layout.max_seqlen, q.device)
    if layout.is_packed and q.is_cuda and not dropout and layout.prefix_lengths is None and q.shape[-1] >= FLEX_MIN_HEAD_DIM:
        return flex_attend(q, k, v, layout, distance_bias, causal)
    bias = expand_bias(distance_bias.to(q.dtype), layout.max_seqlen)
    if causal and layout.prefix_lengths is None:
        bias = bias.masked_fill(~prefix_lm_mask(layout.max_seqlen, torch.zeros((), device=q.device)), float("-inf"))
    if layout.attends_per_sequence and not q.is_cuda:
        return _attend_per_sequence(q, k, v, layout, bias, causal, dropout)
    mask = layout.padding_mask()[:, None, None]
    if causal and layout.prefix_lengths is not None:
        mask = mask & prefix_lm_mask(layout.max_seqlen, layout.prefix_lengths.to(q.device)[:, None, None])[:, None]
    bias = bias[None] if layout.is_uniform and layout.prefix_lengths is None else bias.masked_fill(~mask, float("-inf"))
    return layout.unpad(_sdpa(layout.pad(q), layout.pad(k), layout.pad(v), bias, dropout))


def expand_bias(bias: Tensor, max_seqlen: int) -> Tensor:
    """(heads, 2 * max_seqlen - 1) by relative position -> (heads, max_seqlen, max_seqlen) by query and key."""
    return rel_shift(F.pad(bias, (1, 0))[:, None].expand(-1, max_seqlen, -1), max_seqlen)


def flex_attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor, causal: bool) -> Tensor:
    """FlexAttention over packed sequences: blocks without two tokens of one sequence are skipped, and no (tokens, tokens)
    matrix is built."""
    seq_id, position = layout.seq_id, layout.position
    shifted_position = position + (layout.max_seqlen - 1)  # a tensor, so that max_seqlen is no constant of the compiled graph

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same_sequence = seq_id[query] == seq_id[key]
        return same_sequence & (position[key] <= position[query]) if causal else same_sequence

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + bias[head, shifted_position[key] - position[query]]

    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    is_compiling, num_tokens = torch.compiler.is_compiling(), q.shape[0]
    attend, block_mask_fn = (
        _compiled_flex_attention() if q.is_cuda and not is_compiling else (flex_attention, create_block_mask)
    )
    mask = layout.memoize(
        ("flex_block_mask", causal), lambda: block_mask_fn(mask_mod, None, None, num_tokens, num_tokens, device=str(q.device))
    )
    out: Tensor = attend(*(tensor.transpose(0, 1)[None] for tensor in (q, k, v)), score_mod=score_mod, block_mask=mask)
    return out[0].transpose(0, 1)


@cache
def _compiled_flex_attention() -> tuple[Any, Any]:
    """Compiled flex_attention and create_block_mask; uncompiled, both build the (tokens, tokens) matrix."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=True), torch.compile(create_block_mask, dynamic=True)


def _attend_per_sequence(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor, causal: bool, dropout: float) -> Tensor:
    per_sequence, outputs = (tensor[None].split(layout.lengths.tolist(), dim=1) for tensor in (q, k, v)), []
    for i, (queries, keys, values) in enumerate(zip(*per_sequence, strict=True)):
        length = queries.shape[1]
        sequence_bias = bias[:, :length, :length]
        if causal and layout.prefix_lengths is not None:
            sequence_bias = sequence_bias.masked_fill(~prefix_lm_mask(length, layout.prefix_lengths[i]), float("-inf"))
        outputs.append(_sdpa(queries, keys, values, sequence_bias[None], dropout)[0])
    return torch.cat(outputs)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float) -> Tensor:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, bias, dropout_p=dropout).transpose(1, 2)
