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
from .global_attention import GlobalGroup


def fused_qkv_and_global(
    x: Tensor, qkv: nn.Linear, global_qkv: nn.Linear, groups: Sequence[GlobalGroup], layout: Layout, num_heads: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(tokens, 3 x width) of all; (anchors, width): what the anchors see, by a matrix of their own; and the bias within the
    first, if it learns: whoever knows what the slopes of all rows add up to may give it that, and spare us the sum."""
    three: tuple[Tensor, Tensor, Tensor | None] = _FusedQkvAndGlobal.apply(
        x, qkv.weight, qkv.bias, global_qkv.weight, global_qkv.bias, groups, layout, num_heads
    )
    return three


class _FusedQkvAndGlobal(torch.autograd.Function):
    """Keys and values that only anchors meet are never made.

    A score q (W x + b) is (q W) x + q b, of which the second part is one for all tokens, and changes no weight; a mean of
    values W x + b is W of the mean of x, plus b. Rows of anchors are (heads, anchors, ..) throughout.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, global_weight: Tensor, global_bias: Tensor | None,
        groups: Sequence[GlobalGroup], layout: Layout, num_heads: int,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        ctx.kinds = [None if t is None else t.dtype for t in (x, weight, bias, global_weight, global_bias)]
        shift = None if bias is None or not ctx.needs_input_grad[2] else bias.view_as(bias)
        x, weight, bias, global_weight, global_bias = _to_compute_dtype(x, weight, bias, global_weight, global_bias)
        with torch.autocast(x.device.type, enabled=False):
            qkv, rows = F.linear(x, weight, bias), x.index_select(0, layout.global_tokens)
            (wq, wk, wv), (bq, _, bv) = global_weight.chunk(3), (None,) * 3 if global_bias is None else global_bias.chunk(3)
            q = _split_heads(F.linear(rows, wq, bq).mul_(_scale(x, num_heads)), num_heads)
            asking = torch.bmm(q, wk.unflatten(0, (num_heads, -1)))
            seen = [_attend(sheet, sheet.group_global(asking), sheet.group_tokens(x, layout), num_heads) for sheet in groups]
            means = _cat_groups([sheet.ungroup_global(mean, num_heads) for sheet, (_, mean) in zip(groups, seen, strict=True)])
            out = _merge_heads(torch.bmm(means, wv.unflatten(0, (num_heads, -1)).mT))
        ctx.save_for_backward(x, weight, global_weight, rows, q, asking, means, *(shares for shares, _ in seen))
        ctx.how = groups, layout, num_heads
        ctx.set_materialize_grads(False)
        return qkv, out if bv is None else out.add_(bv), shift

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_qkv: Tensor | None, grad_out: Tensor | None, grad_bias: Tensor | None) -> tuple[Any, ...]:
        (x, weight, *kept), (found, layout, heads), needs = ctx.saved_tensors, ctx.how, ctx.needs_input_grad
        grad_qkv = x.new_zeros(len(x), len(weight)) if grad_qkv is None else grad_qkv
        grad_out = x.new_zeros(len(layout.anchored), x.shape[1]) if grad_out is None else grad_out
        with torch.autocast(x.device.type, enabled=False):
            down = grad_qkv @ weight if needs[0] else None
            first = [down, grad_qkv.mT @ x if needs[1] else None]
            if needs[2] and grad_bias is None:
                grad_bias = grad_qkv.sum(0, dtype=torch.promote_types(grad_qkv.dtype, ctx.kinds[2]))
            own, rows, q, asking, means, *shares = kept
            back = _GlobalBackward(x, own, rows, q, asking, means, shares, found, layout, heads)
            last = back.backward(grad_out, down, *needs[3:5]) if needs[0] or needs[3] or needs[4] else (None, None)
        slopes = (None if t is None else t.to(kind) for t, kind in zip((*first, grad_bias, *last), ctx.kinds, strict=True))
        return *slopes, None, None, None


@dataclass(frozen=True)
class _GlobalBackward:
    """The anchors' way back, and what was kept for it."""

    x: Tensor
    global_weight: Tensor
    global_hidden: Tensor  # of x, those of anchors
    q: Tensor
    folded_queries: Tensor
    mean_hidden: Tensor
    probs: Sequence[Tensor]  # for each sheet
    groups: Sequence[GlobalGroup]
    layout: Layout
    num_heads: int

    def backward(
        self, grad_out: Tensor, grad_x: Tensor | None, needs_weight_grad: bool, needs_bias_grad: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Slopes of the matrix and its bias, if wanted; what anchors do to the tokens is added to `down`."""
        wq, (wk, wv) = self._split_weight(self.global_weight)
        above = _split_heads(grad_out, self.num_heads)
        slope = self._attention_backward(torch.bmm(above, wv), grad_x)
        asked = _merge_heads(torch.bmm(slope, wk.mT)).mul_(_scale(self.x, self.num_heads))
        if grad_x is not None:
            grad_x.index_add_(0, self.layout.global_tokens, asked @ wq)
        return self._weight_grad(asked, slope, above) if needs_weight_grad else None, _bias_grad(
            asked, grad_out
        ) if needs_bias_grad else None

    def _attention_backward(self, grad_mean: Tensor, grad_x: Tensor | None) -> Tensor:
        """Slopes of what anchors asked, of those of the means they got: the only work as large as the tokens."""
        slopes = []
        for sheet, share in zip(self.groups, self.probs, strict=True):
            tokens, up = sheet.group_tokens(self.x, self.layout), sheet.group_global(grad_mean)
            slope = torch.ops.aten._softmax_backward_data(torch.bmm(up, tokens.mT), share, -1, share.dtype)
            slopes.append(sheet.ungroup_global(torch.bmm(slope, tokens), self.num_heads))
            if grad_x is not None:
                rows = torch.cat([sheet.group_global(self.folded_queries), up], 1)
                sheet.add_matmul(grad_x, torch.cat([slope, share], 1).mT, rows, self.layout)
        return _cat_groups(slopes)

    def _weight_grad(self, grad_q: Tensor, grad_folded: Tensor, grad_heads: Tensor) -> Tensor:
        learnt = torch.empty_like(self.global_weight)
        queries, (keys, values) = self._split_weight(learnt)
        torch.mm(grad_q.mT, self.global_hidden, out=queries)
        torch.bmm(self.q.mT, grad_folded, out=keys)
        torch.bmm(grad_heads.mT, self.mean_hidden, out=values)
        return learnt

    def _split_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(width, width) of queries; (2, heads, width of a head, width) of keys and values"""
        width = weight.shape[1]
        return weight[:width], weight[width:].unflatten(0, (2, self.num_heads, -1))


def _bias_grad(grad_q: Tensor, grad_out: Tensor) -> Tensor:
    """That of keys learns nothing: what all scores have more changes no weight."""
    slope = grad_out.new_zeros(3, grad_out.shape[1])
    torch.sum(grad_q, 0, out=slope[0])
    torch.sum(grad_out, 0, out=slope[2])
    return slope.flatten()


def _attend(group: GlobalGroup, folded_queries: Tensor, hidden_states: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    """(groups, heads x anchors, tokens) and (groups, heads x anchors, width): how much of each token, and that much of all."""
    scores = torch.bmm(folded_queries, hidden_states.mT)
    scores.unflatten(1, (num_heads, -1)).masked_fill_(group.masked_out[..., None, :, :], float("-inf"))
    shares = scores.softmax(-1)  # in half precision, too, torch adds up in float32
    return shares, torch.bmm(shares, hidden_states)


def _to_compute_dtype(x: Tensor, *weights: Tensor | None) -> tuple[Any, ...]:
    """All in the numbers in which torch would multiply x by a matrix."""
    kind, device = x.dtype, x.device.type
    if torch.is_autocast_enabled(device) and kind != torch.float64:
        kind = torch.get_autocast_dtype(device)
    return tuple(None if t is None else t.to(kind) for t in (x, *weights))


def _scale(x: Tensor, num_heads: int) -> float:
    return float((x.shape[1] // num_heads) ** -0.5)


def _split_heads(rows: Tensor, num_heads: int) -> Tensor:
    """(anchors, width) -> (heads, anchors, width of a head)"""
    return rows.unflatten(-1, (num_heads, -1)).transpose(0, 1)


def _merge_heads(rows: Tensor) -> Tensor:
    return rows.transpose(0, 1).flatten(1)


def _cat_groups(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
