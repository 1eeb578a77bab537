"""Attention within reach and to the anchors beyond it, in one softmax, at a cost linear in the tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...packing import FLASH_DTYPES, Layout
from ..block_band import BlockBand
from .clamped_rope import ClampedRopeGlobalAttention, build_clamped_qk
from .global_attention import AttentionPattern, GlobalAttention
from .local import BlockLocalAttention, FlashLocalAttention, LocalAttention


@dataclass(frozen=True)
class DilatedOrder:
    """The tokens in an order in which those that `step` apart are neighbours: dilation is then a plain window."""

    layout: Layout  # of what are sequences in this order
    order: Tensor | None  # None: as they are
    inverse_order: Tensor | None
    global_tokens: Tensor  # (anchors,): where they stand in this order
    global_attention: GlobalAttention | None  # None: none of them lies beyond a window


def longformer_attention(
    qkv: Tensor, global_out: Tensor | None, qkv_bias: Tensor | None, layout: Layout, pattern: AttentionPattern, dropout: float = 0.0,
    cos_sin: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(tokens, 3, heads, width) -> (tokens, heads, width). `anchored` (anchors, heads, width) is what anchors themselves
    see, which is another's work, and stands in their rows. `shift` (3, heads, width) has been added to every row of `qkv`;
    its slope is given where it costs nothing. By `turns` queries and keys have been turned, if they have (`Edge`)."""
    quick = qkv.dtype in FLASH_DTYPES if qkv.is_cuda else not torch.compiler.is_compiling()
    if quick and layout.is_packed and not dropout:
        return _fused_attention(qkv, global_out, qkv_bias, layout, pattern, cos_sin)
    out = _eager_attention(qkv, layout, pattern, dropout, cos_sin)
    return out if global_out is None else out.index_copy(0, layout.global_tokens, global_out.to(out.dtype))


@torch.compiler.disable
def _fused_attention(
    qkv: Tensor,
    global_out: Tensor | None,
    qkv_bias: Tensor | None,
    layout: Layout,
    pattern: AttentionPattern,
    cos_sin: Tensor | None,
) -> Tensor:
    """By kernels, which no compiler need see: on CUDA a graph ends before them and begins again behind them."""
    course: DilatedOrder = layout.memoize(pattern, lambda: _build_dilated_order(layout, pattern))
    width, gap = qkv.shape[-1], -qkv.shape[-1] % 8 if qkv.is_cuda else 0
    if gap:  # heads as the kernel wants them; zeros add nothing to a product
        qkv, global_out, qkv_bias = (
            F.pad(qkv, (0, gap)),
            *(None if t is None else F.pad(t, (0, gap)) for t in (global_out, qkv_bias)),
        )
    if course.order is not None:
        qkv = qkv.index_select(0, course.order)
    near = (FlashLocalAttention if qkv.is_cuda else BlockLocalAttention)(course.layout, pattern.half_window, pattern.causal)
    far = (
        course.global_attention
        if course.global_attention is None or cos_sin is None
        else ClampedRopeGlobalAttention(course.global_attention, cos_sin)
    )
    out: Tensor = _LocalGlobalAttention.apply(
        qkv.contiguous(), global_out, qkv_bias, near, far, course.global_tokens, width**-0.5
    )
    out = out if course.inverse_order is None else out.index_select(0, course.inverse_order)
    return out[..., :width] if gap else out


class _LocalGlobalAttention(torch.autograd.Function):
    """Scores are computed again on the way back: nothing as large as they are is kept.

    So is the output kept once, with the anchors' rows in it. On the way back those ask for nothing here: as if the weights of
    what they see had been divided by infinity.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, global_out: Tensor | None, qkv_bias: Tensor | None, local_attention: LocalAttention, global_attention: GlobalAttention | ClampedRopeGlobalAttention | None,
        global_tokens: Tensor, scale: float,
    ) -> Tensor:  # fmt: skip
        with torch.autocast(qkv.device.type, enabled=False):
            q, k, v = qkv.unbind(1)
            out, sums = local_attention.forward(q, k, v, scale)
            if global_attention is not None:
                global_attention.merge(qkv, out, sums, scale)
            if global_out is not None:
                out.index_copy_(0, global_tokens, global_out.to(out.dtype))
                sums.index_fill_(1, global_tokens, float("inf"))
        ctx.save_for_backward(qkv, out, sums)
        ctx.how = None if global_out is None else global_out.dtype, local_attention, global_attention, global_tokens, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        (qkv, out, sums), (kind, near, far, anchors, scale), grad_out = ctx.saved_tensors, ctx.how, grad_out.contiguous()
        rows, total = None if kind is None else grad_out.index_select(0, anchors).to(kind), None
        with torch.autocast(grad_out.device.type, enabled=False):
            down = near.backward(grad_out, *qkv.unbind(1), out, sums, scale)
            if far is None:
                slope = torch.stack(down, 1)
            else:
                slope, total = far.backward(grad_out, qkv, out, sums, down, scale, ctx.needs_input_grad[2])
        return slope, rows, total, None, None, None, None


def _build_dilated_order(layout: Layout, pattern: AttentionPattern) -> DilatedOrder:
    """Found on the host, once a batch."""
    sizes, device, step = np.array(layout.lengths.tolist()), layout.seq_id.device, pattern.dilation
    starts = np.concatenate([[0], sizes.cumsum()])
    chosen = (
        starts[:-1] if layout.explicit_global_tokens is None else np.array(layout.explicit_global_tokens.tolist(), np.int64)
    )
    anchors = chosen if pattern.has_global_tokens else chosen[:0]
    borders = np.searchsorted(anchors, starts)
    late = bool(
        (anchors - starts[np.searchsorted(starts, anchors, "right") - 1] > (pattern.half_window if step == 1 else 0)).any()
    )
    within, owner, place, order, back = layout, layout.seq_id, layout.position, None, None
    if step > 1:
        there = _dilation_permutation(sizes, starts, step)
        here = np.argsort(there)
        order, back = (torch.from_numpy(one).to(device) for one in (there, here))
        shorter = [-(-(size - first) // step) for size in sizes.tolist() for first in range(min(step, size))]
        within, owner, place, anchors = Layout.from_lengths(shorter).to(device), owner[order], place[order], here[anchors]
    far = GlobalAttention(pattern, starts, owner, place, torch.from_numpy(anchors).to(device), borders, late)
    return DilatedOrder(within, order, back, far.global_tokens, far if far.affected_sequences else None)


def _dilation_permutation(lengths: np.ndarray, cu_seqlens: np.ndarray, dilation: int) -> np.ndarray:
    """(tokens,): of each sequence every `step`-th token, then those one behind them, and so on."""
    owner = np.arange(len(lengths)).repeat(lengths)
    place = np.arange(len(owner)) - cu_seqlens[owner]
    return np.lexsort((place, place % dilation, owner))


def _eager_attention(qkv: Tensor, layout: Layout, pattern: AttentionPattern, dropout: float, cos_sin: Tensor | None) -> Tensor:
    """The same for any numbers, any device, padded rectangles and compiled graphs: anchors stand beside the band's keys."""
    owner, anchors = layout.seq_id, layout.global_tokens if pattern.has_global_tokens else layout.first_token[:0]
    band = BlockBand(owner.shape[0], pattern.max_distance, pattern.causal)
    q, k, v = qkv.unbind(1)
    ends, known = k[anchors], v[anchors]
    if cos_sin is not None:
        (q, k, ends), known = (
            build_clamped_qk(q, k, cos_sin, anchors, layout.position, pattern.max_distance),
            torch.cat([known, known]),
        )
    q, k, v, ends, known = (t.transpose(0, 1) for t in (q, k, v, ends, known))
    seen = layout.memoize(
        ("seen", pattern, cos_sin is None), lambda: _attention_mask(band, layout, pattern, anchors, cos_sin is not None)
    )
    keys, values = (
        torch.cat([band.to_key_blocks(t), beside[:, None].expand(-1, band.num_blocks, -1, -1)], dim=2)
        for t, beside in ((k, ends), (v, known))
    )
    mixed = F.scaled_dot_product_attention(
        band.to_query_blocks(q), keys, values, seen, dropout_p=dropout, scale=qkv.shape[-1] ** -0.5
    )
    return band.from_query_blocks(mixed).transpose(0, 1)


def _attention_mask(
    band: BlockBand, layout: Layout, pattern: AttentionPattern, global_tokens: Tensor, separate_sides: bool
) -> Tensor:
    """(1, blocks, block, sight of the band + anchors): within reach, and the anchors beyond it; of two `sides` apart."""
    owner, place = layout.seq_id, layout.position
    beside = band.attention_mask(owner) & (band.relative_positions(owner.device) % pattern.dilation == 0)
    behind = band.to_query_blocks(place[:, None]) - place[global_tokens]
    among = (band.to_query_blocks(owner[:, None], pad_value=-1) == owner[global_tokens]) & ~pattern.in_window(behind)
    if pattern.causal:
        among = among & (behind >= 0)
    if separate_sides:
        among = torch.cat([among & (behind >= 0), among & (behind < 0)], -1)
    return torch.cat([beside, among], dim=-1)[None]
