"""Attention whose scores lean on distance: every head adds a number of its own for how far two tokens are apart."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .apart import Apart
from .layout import Layout, prefixed
from .mixers.distance import by_key

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
