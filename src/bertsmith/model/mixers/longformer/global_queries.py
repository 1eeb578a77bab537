"""Queries, keys and values of all tokens, and what few anchors see of theirs: one step there and one back.

Torch would find the way back by itself, over some forty small steps, and add up four gradients as large as the tokens. Here
there is one, to which each part is added where it lies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...packing import Layout
from .global_attention import Sheet


def asked(
    x: Tensor, qkv: nn.Linear, anchored: nn.Linear, found: Sequence[Sheet], layout: Layout, heads: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(tokens, 3 x width) of all; (anchors, width): what the anchors see, by a matrix of their own; and the bias within the
    first, if it learns: whoever knows what the slopes of all rows add up to may give it that, and spare us the sum."""
    three: tuple[Tensor, Tensor, Tensor | None] = _Asked.apply(
        x, qkv.weight, qkv.bias, anchored.weight, anchored.bias, found, layout, heads
    )
    return three


class _Asked(torch.autograd.Function):
    """Keys and values that only anchors meet are never made.

    A score q (W x + b) is (q W) x + q b, of which the second part is one for all tokens, and changes no weight; a mean of
    values W x + b is W of the mean of x, plus b. Rows of anchors are (heads, anchors, ..) throughout.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor, own_bias: Tensor | None,
        found: Sequence[Sheet], layout: Layout, heads: int,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        ctx.kinds = [None if t is None else t.dtype for t in (x, weight, bias, own, own_bias)]
        shift = None if bias is None or not ctx.needs_input_grad[2] else bias.view_as(bias)
        x, weight, bias, own, own_bias = _multiplied(x, weight, bias, own, own_bias)
        with torch.autocast(x.device.type, enabled=False):
            qkv, rows = F.linear(x, weight, bias), x.index_select(0, layout.anchored)
            (wq, wk, wv), (bq, _, bv) = own.chunk(3), (None,) * 3 if own_bias is None else own_bias.chunk(3)
            q = _apart(F.linear(rows, wq, bq).mul_(_scale(x, heads)), heads)
            asking = torch.bmm(q, wk.unflatten(0, (heads, -1)))
            seen = [_seen(sheet, sheet.grouped(asking), sheet.groups(x, layout), heads) for sheet in found]
            means = _joined([sheet.apart(mean, heads) for sheet, (_, mean) in zip(found, seen, strict=True)])
            out = _beside(torch.bmm(means, wv.unflatten(0, (heads, -1)).mT))
        ctx.save_for_backward(x, weight, own, rows, q, asking, means, *(shares for shares, _ in seen))
        ctx.how = found, layout, heads
        ctx.set_materialize_grads(False)
        return qkv, out if bv is None else out.add_(bv), shift

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, qkv: Tensor | None, out: Tensor | None, shift: Tensor | None) -> tuple[Any, ...]:
        (x, weight, *kept), (found, layout, heads), needs = ctx.saved_tensors, ctx.how, ctx.needs_input_grad
        qkv = x.new_zeros(len(x), len(weight)) if qkv is None else qkv
        out = x.new_zeros(len(layout.anchored), x.shape[1]) if out is None else out
        with torch.autocast(x.device.type, enabled=False):
            down = qkv @ weight if needs[0] else None
            first = [down, qkv.mT @ x if needs[1] else None]
            if needs[2] and shift is None:
                shift = qkv.sum(0, dtype=torch.promote_types(qkv.dtype, ctx.kinds[2]))
            own, rows, q, asking, means, *shares = kept
            back = _Back(x, own, rows, q, asking, means, shares, found, layout, heads)
            last = back.through(out, down, *needs[3:5]) if needs[0] or needs[3] or needs[4] else (None, None)
        slopes = (None if t is None else t.to(kind) for t, kind in zip((*first, shift, *last), ctx.kinds, strict=True))
        return *slopes, None, None, None


@dataclass(frozen=True)
class _Back:
    """The anchors' way back, and what was kept for it."""

    x: Tensor
    own: Tensor
    rows: Tensor  # of x, those of anchors
    q: Tensor
    asking: Tensor
    means: Tensor
    shares: Sequence[Tensor]  # for each sheet
    found: Sequence[Sheet]
    layout: Layout
    heads: int

    def through(self, out: Tensor, down: Tensor | None, learns: bool, shifts: bool) -> tuple[Tensor | None, Tensor | None]:
        """Slopes of the matrix and its bias, if wanted; what anchors do to the tokens is added to `down`."""
        wq, (wk, wv) = self._parts(self.own)
        above = _apart(out, self.heads)
        slope = self._met(torch.bmm(above, wv), down)
        asked = _beside(torch.bmm(slope, wk.mT)).mul_(_scale(self.x, self.heads))
        if down is not None:
            down.index_add_(0, self.layout.anchored, asked @ wq)
        return self._learnt(asked, slope, above) if learns else None, _shifted(asked, out) if shifts else None

    def _met(self, above: Tensor, down: Tensor | None) -> Tensor:
        """Slopes of what anchors asked, of those of the means they got: the only work as large as the tokens."""
        slopes = []
        for sheet, share in zip(self.found, self.shares, strict=True):
            tokens, up = sheet.groups(self.x, self.layout), sheet.grouped(above)
            slope = torch.ops.aten._softmax_backward_data(torch.bmm(up, tokens.mT), share, -1, share.dtype)
            slopes.append(sheet.apart(torch.bmm(slope, tokens), self.heads))
            if down is not None:
                rows = torch.cat([sheet.grouped(self.asking), up], 1)
                sheet.add(down, torch.cat([slope, share], 1).mT, rows, self.layout)
        return _joined(slopes)

    def _learnt(self, asked: Tensor, slope: Tensor, above: Tensor) -> Tensor:
        learnt = torch.empty_like(self.own)
        queries, (keys, values) = self._parts(learnt)
        torch.mm(asked.mT, self.rows, out=queries)
        torch.bmm(self.q.mT, slope, out=keys)
        torch.bmm(above.mT, self.means, out=values)
        return learnt

    def _parts(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """(width, width) of queries; (2, heads, width of a head, width) of keys and values"""
        width = own.shape[1]
        return own[:width], own[width:].unflatten(0, (2, self.heads, -1))


def _shifted(asked: Tensor, out: Tensor) -> Tensor:
    """That of keys learns nothing: what all scores have more changes no weight."""
    slope = out.new_zeros(3, out.shape[1])
    torch.sum(asked, 0, out=slope[0])
    torch.sum(out, 0, out=slope[2])
    return slope.flatten()


def _seen(sheet: Sheet, asking: Tensor, tokens: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """(groups, heads x anchors, tokens) and (groups, heads x anchors, width): how much of each token, and that much of all."""
    scores = torch.bmm(asking, tokens.mT)
    scores.unflatten(1, (heads, -1)).masked_fill_(sheet.hidden[..., None, :, :], float("-inf"))
    shares = scores.softmax(-1)  # in half precision, too, torch adds up in float32
    return shares, torch.bmm(shares, tokens)


def _multiplied(x: Tensor, *weights: Tensor | None) -> tuple[Any, ...]:
    """All in the numbers in which torch would multiply x by a matrix."""
    kind, device = x.dtype, x.device.type
    if torch.is_autocast_enabled(device) and kind != torch.float64:
        kind = torch.get_autocast_dtype(device)
    return tuple(None if t is None else t.to(kind) for t in (x, *weights))


def _scale(x: Tensor, heads: int) -> float:
    return float((x.shape[1] // heads) ** -0.5)


def _apart(rows: Tensor, heads: int) -> Tensor:
    """(anchors, width) -> (heads, anchors, width of a head)"""
    return rows.unflatten(-1, (heads, -1)).transpose(0, 1)


def _beside(rows: Tensor) -> Tensor:
    return rows.transpose(0, 1).flatten(1)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
