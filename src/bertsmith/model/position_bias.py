"""What the distance between two tokens adds to the score between them: ALiBi's slopes, or T5's learned buckets."""

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


class AlibiConfig(Variant, frozen=True, tag="alibi"):
    """A penalty that grows with the distance, at a pace of each head's own (Press et al. 2022)."""

    def build(self, num_heads: int, causal: bool) -> "PositionBias":
        return AlibiBias(num_heads)


class T5BiasConfig(Variant, frozen=True, tag="relative"):
    """A learned number for each head and each bucket of distances, as T5 (Raffel et al. 2020)."""

    buckets: Annotated[
        PosInt, "half of them for one distance each, the rest for ever more; unless causal, half for each side"
    ] = 32
    furthest: Annotated[PosInt, "the last bucket has this distance and all beyond"] = 128
    shared: Annotated[bool, "all layers have those of the first, as T5; else each has its own"] = True

    def build(self, num_heads: int, causal: bool) -> "PositionBias":
        return T5Bias(self, num_heads, causal)


PositionBiasConfig = AlibiConfig | T5BiasConfig


class PositionBias(nn.Module, ABC):
    @abstractmethod
    def forward(self, relative_position: Tensor) -> Tensor:
        """(..): how far keys lie ahead of queries -> (heads, ..): what that adds to their scores."""

    def bias_by_distance(self, max_seqlen: int, device: torch.device) -> Tensor:
        """(heads, 2 x longest - 1): of every distance in a text of so many tokens, from the furthest behind."""
        return self(torch.arange(1 - max_seqlen, max_seqlen, device=device))


class AlibiBias(PositionBias):
    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)  # no part of a checkpoint

    def forward(self, relative_position: Tensor) -> Tensor:
        paces = torch.tensor(self.slopes, device=relative_position.device).view(-1, *[1] * relative_position.ndim)
        return -paces * relative_position.abs()


class T5Bias(PositionBias):
    def __init__(self, config: T5BiasConfig, num_heads: int, causal: bool) -> None:
        super().__init__()
        sides, self.causal, self.max_distance = 1 if causal else 2, causal, config.furthest
        self.max_exact = config.buckets // sides // 2
        if config.buckets % (2 * sides) or config.furthest <= self.max_exact:
            raise UserError(f"{config.buckets} buckets of distances up to {config.furthest}: let model.mixer.distance.buckets "
                           f"be a multiple of {2 * sides}, and furthest more than {max(1, self.max_exact)}")  # fmt: skip
        self.table = nn.Embedding(config.buckets, num_heads)

    def forward(self, relative_position: Tensor) -> Tensor:
        return self.table(self.relative_position_bucket(relative_position)).movedim(-1, 0)

    def relative_position_bucket(self, relative_position: Tensor) -> Tensor:
        """Small distances have one each; larger ones share, in equal steps of their logarithm."""
        distance = (-relative_position).clamp(min=0) if self.causal else relative_position.abs()
        steps = (distance.clamp(min=1) / self.max_exact).log() / math.log(self.max_distance / self.max_exact) * self.max_exact
        far = (self.max_exact + steps.long()).clamp(max=2 * self.max_exact - 1)
        found = torch.where(distance < self.max_exact, distance, far)
        return found if self.causal else found + 2 * self.max_exact * (relative_position > 0)


def alibi_slopes(num_heads: int) -> list[float]:
    """1/2, 1/4 .. 1/256 for 8 heads, in such steps for any power of two; others take every second one of twice as many."""
    whole = 1 << (num_heads.bit_length() - 1)
    found = [2.0 ** (-8 * number / whole) for number in range(1, whole + 1)]
    return found + [2.0 ** (-4 * number / whole) for number in range(1, 2 * (num_heads - whole), 2)]


FLEX_MIN_HEAD_DIM = 16  # heads that FlexAttention takes


def attend_with_bias(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, position_bias: PositionBias, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """(tokens, heads, width) three times in, once out; as `Layout.attend`."""
    row = position_bias.bias_by_distance(layout.max_seqlen, q.device)
    if layout.is_packed and q.is_cuda and not dropout and layout.prefix_lengths is None and q.shape[-1] >= FLEX_MIN_HEAD_DIM:
        return flex_attend(q, k, v, layout, row, causal)
    added = expand_bias(row.to(q.dtype), layout.max_seqlen)
    if causal and layout.prefix_lengths is None:
        added = added.masked_fill(~prefix_lm_mask(layout.max_seqlen, torch.zeros((), device=q.device)), float("-inf"))
    if layout.attends_per_sequence and not q.is_cuda:
        return _attend_per_sequence(q, k, v, layout, added, causal, dropout)
    seen = layout.padding_mask()[:, None, None]
    if causal and layout.prefix_lengths is not None:
        seen = seen & prefix_lm_mask(layout.max_seqlen, layout.prefix_lengths.to(q.device)[:, None, None])[:, None]
    added = added[None] if layout.is_uniform and layout.prefix_lengths is None else added.masked_fill(~seen, float("-inf"))
    return layout.unpad(_sdpa(layout.pad(q), layout.pad(k), layout.pad(v), added, dropout))


def expand_bias(bias: Tensor, max_seqlen: int) -> Tensor:
    """(heads, 2 x longest - 1) by distance -> (heads, longest, longest) by query and key."""
    return rel_shift(F.pad(bias, (1, 0))[:, None].expand(-1, max_seqlen, -1), max_seqlen)


def flex_attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor, causal: bool) -> Tensor:
    """Blocks of the pack in which no two tokens are of one sequence are not looked at, and no square is made."""
    owner, place = layout.seq_id, layout.position
    shifted = place + (layout.max_seqlen - 1)  # no number of the batch in what is compiled

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = owner[query] == owner[key]
        return same & (place[key] <= place[query]) if causal else same

    def leaning(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + bias[head, shifted[key] - place[query]]

    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    inside, tokens = torch.compiler.is_compiling(), q.shape[0]
    attention, blocks = _compiled_flex_attention() if q.is_cuda and not inside else (flex_attention, create_block_mask)
    mask = layout.memoize(("leaning", causal), lambda: blocks(seen, None, None, tokens, tokens, device=str(q.device)))
    out: Tensor = attention(*(t.transpose(0, 1)[None] for t in (q, k, v)), score_mod=leaning, block_mask=mask)
    return out[0].transpose(0, 1)


@cache
def _compiled_flex_attention() -> tuple[Any, Any]:
    """Attention, and what makes its blocks: uncompiled, both make the whole square."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=True), torch.compile(create_block_mask, dynamic=True)


def _attend_per_sequence(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor, causal: bool, dropout: float) -> Tensor:
    parts, outs = (t[None].split(layout.lengths.tolist(), dim=1) for t in (q, k, v)), []
    for number, (some, keys, values) in enumerate(zip(*parts, strict=True)):
        length = some.shape[1]
        own = bias[:, :length, :length]
        if causal and layout.prefix_lengths is not None:
            own = own.masked_fill(~prefix_lm_mask(length, layout.prefix_lengths[number]), float("-inf"))
        outs.append(_sdpa(some, keys, values, own[None], dropout)[0])
    return torch.cat(outs)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, bias, dropout_p=dropout).transpose(1, 2)
