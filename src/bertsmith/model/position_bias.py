"""What the distance between two tokens adds to the score between them: ALiBi's slopes, or T5's learned buckets."""

import math
from abc import ABC, abstractmethod
from functools import cache
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Count, Variant
from ..errors import BadInput
from .packing import Layout, prefixed
from .positions import by_key


class Alibi(Variant, frozen=True):
    """A penalty that grows with the distance, at a pace of each head's own (Press et al. 2022)."""

    def build(self, heads: int, causal: bool) -> "Apart":
        return Slopes(heads)


class Relative(Variant, frozen=True):
    """A learned number for each head and each bucket of distances, as T5 (Raffel et al. 2020)."""

    buckets: Annotated[
        Count, "half of them for one distance each, the rest for ever more; unless causal, half for each side"
    ] = 32
    furthest: Annotated[Count, "the last bucket has this distance and all beyond"] = 128
    shared: Annotated[bool, "all layers have those of the first, as T5; else each has its own"] = True

    def build(self, heads: int, causal: bool) -> "Apart":
        return Buckets(self, heads, causal)


DistanceConfig = Alibi | Relative


class Apart(nn.Module, ABC):
    @abstractmethod
    def forward(self, ahead: Tensor) -> Tensor:
        """(..): how far keys lie ahead of queries -> (heads, ..): what that adds to their scores."""

    def row(self, longest: int, device: torch.device) -> Tensor:
        """(heads, 2 x longest - 1): of every distance in a text of so many tokens, from the furthest behind."""
        return self(torch.arange(1 - longest, longest, device=device))


class Slopes(Apart):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.paces = slopes(heads)  # no part of a checkpoint

    def forward(self, ahead: Tensor) -> Tensor:
        paces = torch.tensor(self.paces, device=ahead.device).view(-1, *[1] * ahead.ndim)
        return -paces * ahead.abs()


class Buckets(Apart):
    def __init__(self, config: Relative, heads: int, causal: bool) -> None:
        super().__init__()
        sides, self.causal, self.furthest = 1 if causal else 2, causal, config.furthest
        self.exact = config.buckets // sides // 2
        if config.buckets % (2 * sides) or config.furthest <= self.exact:
            raise BadInput(f"{config.buckets} buckets of distances up to {config.furthest}: let model.mixer.distance.buckets "
                           f"be a multiple of {2 * sides}, and furthest more than {max(1, self.exact)}")  # fmt: skip
        self.table = nn.Embedding(config.buckets, heads)

    def forward(self, ahead: Tensor) -> Tensor:
        return self.table(self.bucket(ahead)).movedim(-1, 0)

    def bucket(self, ahead: Tensor) -> Tensor:
        """Small distances have one each; larger ones share, in equal steps of their logarithm."""
        distance = (-ahead).clamp(min=0) if self.causal else ahead.abs()
        steps = (distance.clamp(min=1) / self.exact).log() / math.log(self.furthest / self.exact) * self.exact
        far = (self.exact + steps.long()).clamp(max=2 * self.exact - 1)
        found = torch.where(distance < self.exact, distance, far)
        return found if self.causal else found + 2 * self.exact * (ahead > 0)


def slopes(heads: int) -> list[float]:
    """1/2, 1/4 .. 1/256 for 8 heads, in such steps for any power of two; others take every second one of twice as many."""
    whole = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-8 * number / whole) for number in range(1, whole + 1)]
    return found + [2.0 ** (-4 * number / whole) for number in range(1, 2 * (heads - whole), 2)]


NARROWEST = 16  # heads that FlexAttention takes


def leant(q: Tensor, k: Tensor, v: Tensor, layout: Layout, apart: Apart, causal: bool = False, dropout: float = 0.0) -> Tensor:
    """(tokens, heads, width) three times in, once out; as `Layout.attend`."""
    row = apart.row(layout.longest, q.device)
    if layout.gapless and q.is_cuda and not dropout and layout.prefix is None and q.shape[-1] >= NARROWEST:
        return flexed(q, k, v, layout, row, causal)
    added = squared(row.to(q.dtype), layout.longest)
    if causal and layout.prefix is None:
        added = added.masked_fill(~prefixed(layout.longest, torch.zeros((), device=q.device)), float("-inf"))
    if layout.one_by_one and not q.is_cuda:
        return _one_by_one(q, k, v, layout, added, causal, dropout)
    seen = layout.real()[:, None, None]
    if causal and layout.prefix is not None:
        seen = seen & prefixed(layout.longest, layout.prefix.to(q.device)[:, None, None])[:, None]
    added = added[None] if layout.even and layout.prefix is None else added.masked_fill(~seen, float("-inf"))
    return layout.flat(_attended(layout.grid(q), layout.grid(k), layout.grid(v), added, dropout))


def squared(row: Tensor, longest: int) -> Tensor:
    """(heads, 2 x longest - 1) by distance -> (heads, longest, longest) by query and key."""
    return by_key(F.pad(row, (1, 0))[:, None].expand(-1, longest, -1), longest)


def flexed(q: Tensor, k: Tensor, v: Tensor, layout: Layout, row: Tensor, causal: bool) -> Tensor:
    """Blocks of the pack in which no two tokens are of one sequence are not looked at, and no square is made."""
    owner, place = layout.owner, layout.place
    shifted = place + (layout.longest - 1)  # no number of the batch in what is compiled

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = owner[query] == owner[key]
        return same & (place[key] <= place[query]) if causal else same

    def leaning(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + row[head, shifted[key] - place[query]]

    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    inside, tokens = torch.compiler.is_compiling(), q.shape[0]
    attention, blocks = _compiled() if q.is_cuda and not inside else (flex_attention, create_block_mask)
    mask = layout.once(("leaning", causal), lambda: blocks(seen, None, None, tokens, tokens, device=str(q.device)))
    out: Tensor = attention(*(t.transpose(0, 1)[None] for t in (q, k, v)), score_mod=leaning, block_mask=mask)
    return out[0].transpose(0, 1)


@cache
def _compiled() -> tuple[Any, Any]:
    """Attention, and what makes its blocks: uncompiled, both make the whole square."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=True), torch.compile(create_block_mask, dynamic=True)


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, layout: Layout, added: Tensor, causal: bool, dropout: float) -> Tensor:
    parts, outs = (t[None].split(layout.lengths.tolist(), dim=1) for t in (q, k, v)), []
    for number, (some, keys, values) in enumerate(zip(*parts, strict=True)):
        length = some.shape[1]
        own = added[:, :length, :length]
        if causal and layout.prefix is not None:
            own = own.masked_fill(~prefixed(length, layout.prefix[number]), float("-inf"))
        outs.append(_attended(some, keys, values, own[None], dropout)[0])
    return torch.cat(outs)


def _attended(q: Tensor, k: Tensor, v: Tensor, added: Tensor, dropout: float) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, added, dropout_p=dropout).transpose(1, 2)
