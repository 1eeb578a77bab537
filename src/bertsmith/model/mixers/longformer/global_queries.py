"""The QKV projection of all tokens and the global tokens' own attention, in one autograd function.

Plain autograd would run some forty small operations backward and add up four gradients of the size of the input. Here there is
one such gradient, to which each part is added in place.
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
    """Returns qkv(x), (tokens, 3 * hidden_size); the global tokens' attention output, (global tokens, hidden_size), with the
    projections of `global_qkv`; and the bias of `qkv`, if it is trained.

    The attention that follows may know the sum over tokens of the gradient of qkv(x); it can pass it back through this bias,
    which saves computing the sum here.
    """
    outputs: tuple[Tensor, Tensor, Tensor | None] = _FusedQkvAndGlobal.apply(
        x, qkv.weight, qkv.bias, global_qkv.weight, global_qkv.bias, groups, layout, num_heads
    )
    return outputs


class _FusedQkvAndGlobal(torch.autograd.Function):
    """Global keys and values are never computed: their projections are folded into the queries and the output.

    A score q (W x + b) is (q W) x + q b; the second term is the same for all tokens and cancels in the softmax. A weighted mean
    of values W x + b is W (mean of x) + b. Tensors of global tokens are (heads, global tokens, ..) throughout.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, global_weight: Tensor, global_bias: Tensor | None,
        groups: Sequence[GlobalGroup], layout: Layout, num_heads: int,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        ctx.dtypes = [None if t is None else t.dtype for t in (x, weight, bias, global_weight, global_bias)]
        bias_view = None if bias is None or not ctx.needs_input_grad[2] else bias.view_as(bias)
        x, weight, bias, global_weight, global_bias = _to_compute_dtype(x, weight, bias, global_weight, global_bias)
        with torch.autocast(x.device.type, enabled=False):
            qkv, global_hidden = F.linear(x, weight, bias), x.index_select(0, layout.global_tokens)
            (wq, wk, wv), (bq, _, bv) = global_weight.chunk(3), (None,) * 3 if global_bias is None else global_bias.chunk(3)
            q = _split_heads(F.linear(global_hidden, wq, bq).mul_(_scale(x, num_heads)), num_heads)
            folded_queries = torch.bmm(q, wk.unflatten(0, (num_heads, -1)))
            attended = [
                _attend(group, group.group_global(folded_queries), group.group_tokens(x, layout), num_heads) for group in groups
            ]
            mean_hidden = _cat_groups(
                [group.ungroup_global(group_mean, num_heads) for group, (_, group_mean) in zip(groups, attended, strict=True)]
            )
            out = _merge_heads(torch.bmm(mean_hidden, wv.unflatten(0, (num_heads, -1)).mT))
        ctx.save_for_backward(
            x, weight, global_weight, global_hidden, q, folded_queries, mean_hidden, *(probs for probs, _ in attended)
        )
        ctx.args = groups, layout, num_heads
        ctx.set_materialize_grads(False)
        return qkv, out if bv is None else out.add_(bv), bias_view

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_qkv: Tensor | None, grad_out: Tensor | None, grad_bias: Tensor | None) -> tuple[Any, ...]:
        (x, weight, *saved), (groups, layout, num_heads), needs_grad = ctx.saved_tensors, ctx.args, ctx.needs_input_grad
        grad_qkv = x.new_zeros(len(x), len(weight)) if grad_qkv is None else grad_qkv
        grad_out = x.new_zeros(len(layout.global_tokens), x.shape[1]) if grad_out is None else grad_out
        with torch.autocast(x.device.type, enabled=False):
            grad_x = grad_qkv @ weight if needs_grad[0] else None
            qkv_grads = [grad_x, grad_qkv.mT @ x if needs_grad[1] else None]
            if needs_grad[2] and grad_bias is None:
                grad_bias = grad_qkv.sum(0, dtype=torch.promote_types(grad_qkv.dtype, ctx.dtypes[2]))
            global_weight, global_hidden, q, folded_queries, mean_hidden, *probs = saved
            global_backward = _GlobalBackward(
                x, global_weight, global_hidden, q, folded_queries, mean_hidden, probs, groups, layout, num_heads
            )
            global_grads = (
                global_backward.backward(grad_out, grad_x, *needs_grad[3:5])
                if needs_grad[0] or needs_grad[3] or needs_grad[4]
                else (None, None)
            )
        grads = (
            None if t is None else t.to(dtype)
            for t, dtype in zip((*qkv_grads, grad_bias, *global_grads), ctx.dtypes, strict=True)
        )
        return *grads, None, None, None


@dataclass(frozen=True)
class _GlobalBackward:
    """Backward pass of the global tokens' attention, with the tensors saved for it."""

    x: Tensor
    global_weight: Tensor
    global_hidden: Tensor  # rows of x of the global tokens
    q: Tensor
    folded_queries: Tensor
    mean_hidden: Tensor
    probs: Sequence[Tensor]  # of each group
    groups: Sequence[GlobalGroup]
    layout: Layout
    num_heads: int

    def backward(
        self, grad_out: Tensor, grad_x: Tensor | None, needs_weight_grad: bool, needs_bias_grad: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the global projection and its bias, if needed; that of x is added to `grad_x` in place."""
        wq, (wk, wv) = self._split_weight(self.global_weight)
        grad_heads = _split_heads(grad_out, self.num_heads)
        grad_folded = self._attention_backward(torch.bmm(grad_heads, wv), grad_x)
        grad_q = _merge_heads(torch.bmm(grad_folded, wk.mT)).mul_(_scale(self.x, self.num_heads))
        if grad_x is not None:
            grad_x.index_add_(0, self.layout.global_tokens, grad_q @ wq)
        return self._weight_grad(grad_q, grad_folded, grad_heads) if needs_weight_grad else None, _bias_grad(
            grad_q, grad_out
        ) if needs_bias_grad else None

    def _attention_backward(self, grad_mean: Tensor, grad_x: Tensor | None) -> Tensor:
        """Gradient of the folded queries from that of the weighted means; the only step whose cost grows with the tokens."""
        grad_folded = []
        for group, probs in zip(self.groups, self.probs, strict=True):
            hidden_states, grad_rows = group.group_tokens(self.x, self.layout), group.group_global(grad_mean)
            grad_scores = torch.ops.aten._softmax_backward_data(torch.bmm(grad_rows, hidden_states.mT), probs, -1, probs.dtype)
            grad_folded.append(group.ungroup_global(torch.bmm(grad_scores, hidden_states), self.num_heads))
            if grad_x is not None:
                rows = torch.cat([group.group_global(self.folded_queries), grad_rows], 1)
                group.add_matmul(grad_x, torch.cat([grad_scores, probs], 1).mT, rows, self.layout)
        return _cat_groups(grad_folded)

    def _weight_grad(self, grad_q: Tensor, grad_folded: Tensor, grad_heads: Tensor) -> Tensor:
        grad_weight = torch.empty_like(self.global_weight)
        queries, (keys, values) = self._split_weight(grad_weight)
        torch.mm(grad_q.mT, self.global_hidden, out=queries)
        torch.bmm(self.q.mT, grad_folded, out=keys)
        torch.bmm(grad_heads.mT, self.mean_hidden, out=values)
        return grad_weight

    def _split_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(hidden_size, hidden_size) of queries; (2, heads, head_dim, hidden_size) of keys and values"""
        hidden_size = weight.shape[1]
        return weight[:hidden_size], weight[hidden_size:].unflatten(0, (2, self.num_heads, -1))


def _bias_grad(grad_q: Tensor, grad_out: Tensor) -> Tensor:
    """(3 * hidden_size,): zero for keys, as a constant added to all scores cancels in the softmax."""
    grad_bias = grad_out.new_zeros(3, grad_out.shape[1])
    torch.sum(grad_q, 0, out=grad_bias[0])
    torch.sum(grad_out, 0, out=grad_bias[2])
    return grad_bias.flatten()


def _attend(group: GlobalGroup, folded_queries: Tensor, hidden_states: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    """Attention probabilities, (batch, heads * global tokens, tokens), and mean hidden states, (.., hidden_size)."""
    scores = torch.bmm(folded_queries, hidden_states.mT)
    scores.unflatten(1, (num_heads, -1)).masked_fill_(group.masked_out[..., None, :, :], float("-inf"))
    probs = scores.softmax(-1)  # torch accumulates in float32 for half precision too
    return probs, torch.bmm(probs, hidden_states)


def _to_compute_dtype(x: Tensor, *weights: Tensor | None) -> tuple[Any, ...]:
    """All in the dtype in which torch would compute F.linear(x, weight), autocast included."""
    dtype, device = x.dtype, x.device.type
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    return tuple(None if t is None else t.to(dtype) for t in (x, *weights))


def _scale(x: Tensor, num_heads: int) -> float:
    return float((x.shape[1] // num_heads) ** -0.5)


def _split_heads(rows: Tensor, num_heads: int) -> Tensor:
    """(global tokens, hidden_size) -> (heads, global tokens, head_dim)"""
    return rows.unflatten(-1, (num_heads, -1)).transpose(0, 1)


def _merge_heads(rows: Tensor) -> Tensor:
    return rows.transpose(0, 1).flatten(1)


def _cat_groups(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
