"""Longformer attention: sliding window and global tokens in one softmax, at a cost linear in the tokens."""

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
    """The tokens permuted so that those `dilation` apart are adjacent: a dilated window is then a plain one."""

    layout: Layout  # in which each position modulo the dilation is a sequence of its own
    order: Tensor | None  # (tokens,); None: unchanged
    inverse_order: Tensor | None
    global_tokens: Tensor  # (global tokens,): their indices in this order
    global_attention: GlobalAttention | None  # None: they are in the window of every token


def longformer_attention(
    qkv: Tensor, global_out: Tensor | None, qkv_bias: Tensor | None, layout: Layout, pattern: AttentionPattern,
    dropout: float = 0.0, cos_sin: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of each token to its window and the global tokens of its sequence.

    qkv: (tokens, 3, heads, head_dim). Returns (tokens, heads, head_dim).
    global_out: (global tokens, heads, head_dim), the global tokens' own attention, computed elsewhere; fills their rows.
    qkv_bias: (3, heads, head_dim), already added to every row of `qkv`; gets a gradient where that costs nothing extra.
    cos_sin: the RoPE table, if queries and keys have been rotated (see clamped_rope.py).
    """
    use_fused = qkv.dtype in FLASH_DTYPES if qkv.is_cuda else not torch.compiler.is_compiling()
    if use_fused and layout.is_packed and not dropout:
        if torch.compiler.is_compiling():
            from .uncompiled import fused_attention as attend  # imports torch._dynamo, which takes a second
        else:
            attend = fused_attention
        return attend(qkv, global_out, qkv_bias, layout, pattern, cos_sin)
    out = _eager_attention(qkv, layout, pattern, dropout, cos_sin)
    return out if global_out is None else out.index_copy(0, layout.global_tokens, global_out.to(out.dtype))


def fused_attention(
    qkv: Tensor,
    global_out: Tensor | None,
    qkv_bias: Tensor | None,
    layout: Layout,
    pattern: AttentionPattern,
    cos_sin: Tensor | None,
) -> Tensor:
    """With kernels that torch.compile does not trace: on CUDA the graph breaks here (see uncompiled.py)."""
    dilated: DilatedOrder = layout.memoize(pattern, lambda: _build_dilated_order(layout, pattern))
    head_dim, padding = qkv.shape[-1], -qkv.shape[-1] % 8 if qkv.is_cuda else 0
    if padding:  # the kernel needs a multiple of 8; zeros do not change dot products
        qkv, global_out, qkv_bias = (
            F.pad(qkv, (0, padding)),
            *(None if t is None else F.pad(t, (0, padding)) for t in (global_out, qkv_bias)),
        )
    if dilated.order is not None:
        qkv = qkv.index_select(0, dilated.order)
    local_attention = (FlashLocalAttention if qkv.is_cuda else BlockLocalAttention)(
        dilated.layout, pattern.half_window, pattern.causal
    )
    global_attention = (
        dilated.global_attention
        if dilated.global_attention is None or cos_sin is None
        else ClampedRopeGlobalAttention(dilated.global_attention, cos_sin)
    )
    out: Tensor = _LocalGlobalAttention.apply(
        qkv.contiguous(), global_out, qkv_bias, local_attention, global_attention, dilated.global_tokens, head_dim**-0.5
    )
    out = out if dilated.inverse_order is None else out.index_select(0, dilated.inverse_order)
    return out[..., :head_dim] if padding else out


class _LocalGlobalAttention(torch.autograd.Function):
    """Scores are recomputed in the backward pass: nothing of their size is saved.

    The output is saved once, with the global tokens' rows filled in. Their lse is set to infinity, so that their attention
    probabilities, and with them all gradients from these rows, are zero here.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, global_out: Tensor | None, qkv_bias: Tensor | None, local_attention: LocalAttention,
        global_attention: GlobalAttention | ClampedRopeGlobalAttention | None, global_tokens: Tensor, scale: float,
    ) -> Tensor:  # fmt: skip
        with torch.autocast(qkv.device.type, enabled=False):
            q, k, v = qkv.unbind(1)
            out, lse = local_attention.forward(q, k, v, scale)
            if global_attention is not None:
                global_attention.merge(qkv, out, lse, scale)
            if global_out is not None:
                out.index_copy_(0, global_tokens, global_out.to(out.dtype))
                lse.index_fill_(1, global_tokens, float("inf"))
        ctx.save_for_backward(qkv, out, lse)
        ctx.args = None if global_out is None else global_out.dtype, local_attention, global_attention, global_tokens, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        (qkv, out, lse), (global_dtype, local_attention, global_attention, global_tokens, scale), grad_out = (
            ctx.saved_tensors,
            ctx.args,
            grad_out.contiguous(),
        )
        grad_global, grad_bias = (
            None if global_dtype is None else grad_out.index_select(0, global_tokens).to(global_dtype),
            None,
        )
        with torch.autocast(grad_out.device.type, enabled=False):
            local_grads = local_attention.backward(grad_out, *qkv.unbind(1), out, lse, scale)
            if global_attention is None:
                grad_qkv = torch.stack(local_grads, 1)
            else:
                grad_qkv, grad_bias = global_attention.backward(
                    grad_out, qkv, out, lse, local_grads, scale, ctx.needs_input_grad[2]
                )
        return grad_qkv, grad_global, grad_bias, None, None, None, None


def _build_dilated_order(layout: Layout, pattern: AttentionPattern) -> DilatedOrder:
    """Computed on the host, once per batch."""
    lengths, device, dilation = np.array(layout.lengths.tolist()), layout.seq_id.device, pattern.dilation
    cu_seqlens = np.concatenate([[0], lengths.cumsum()])
    candidates = (
        cu_seqlens[:-1] if layout.explicit_global_tokens is None else np.array(layout.explicit_global_tokens.tolist(), np.int64)
    )
    global_tokens = candidates if pattern.has_global_tokens else candidates[:0]
    cu_global = np.searchsorted(global_tokens, cu_seqlens)
    has_global_ahead = bool(
        (
            global_tokens - cu_seqlens[np.searchsorted(cu_seqlens, global_tokens, "right") - 1]
            > (pattern.half_window if dilation == 1 else 0)
        ).any()
    )
    dilated_layout, seq_id, position, order, inverse_order = layout, layout.seq_id, layout.position, None, None
    if dilation > 1:
        permutation = _dilation_permutation(lengths, cu_seqlens, dilation)
        inverse = np.argsort(permutation)
        order, inverse_order = (torch.from_numpy(array).to(device) for array in (permutation, inverse))
        strided_lengths = [
            -(-(length - offset) // dilation) for length in lengths.tolist() for offset in range(min(dilation, length))
        ]
        dilated_layout, seq_id, position, global_tokens = (
            Layout.from_lengths(strided_lengths).to(device),
            seq_id[order],
            position[order],
            inverse[global_tokens],
        )
    global_attention = GlobalAttention(
        pattern, cu_seqlens, seq_id, position, torch.from_numpy(global_tokens).to(device), cu_global, has_global_ahead
    )
    return DilatedOrder(
        dilated_layout,
        order,
        inverse_order,
        global_attention.global_tokens,
        global_attention if global_attention.affected_sequences else None,
    )


def _dilation_permutation(lengths: np.ndarray, cu_seqlens: np.ndarray, dilation: int) -> np.ndarray:
    """(tokens,): of each sequence the tokens at positions 0, dilation, 2 * dilation, ..., then 1, dilation + 1, ..."""
    seq_id = np.arange(len(lengths)).repeat(lengths)
    position = np.arange(len(seq_id)) - cu_seqlens[seq_id]
    return np.lexsort((position, position % dilation, seq_id))


def _eager_attention(qkv: Tensor, layout: Layout, pattern: AttentionPattern, dropout: float, cos_sin: Tensor | None) -> Tensor:
    """The same for any dtype, device, padded batches and compiled graphs: global keys are appended to those of each block."""
    seq_id, global_tokens = layout.seq_id, layout.global_tokens if pattern.has_global_tokens else layout.first_token[:0]
    band = BlockBand(seq_id.shape[0], pattern.max_distance, pattern.causal)
    q, k, v = qkv.unbind(1)
    global_keys, global_values = k[global_tokens], v[global_tokens]
    if cos_sin is not None:
        (q, k, global_keys), global_values = (
            build_clamped_qk(q, k, cos_sin, global_tokens, layout.position, pattern.max_distance),
            torch.cat([global_values, global_values]),
        )
    q, k, v, global_keys, global_values = (t.transpose(0, 1) for t in (q, k, v, global_keys, global_values))
    mask = layout.memoize(
        ("attention_mask", pattern, cos_sin is None),
        lambda: _attention_mask(band, layout, pattern, global_tokens, cos_sin is not None),
    )
    keys, values = (
        torch.cat([band.to_key_blocks(t), appended[:, None].expand(-1, band.num_blocks, -1, -1)], dim=2)
        for t, appended in ((k, global_keys), (v, global_values))
    )
    out = F.scaled_dot_product_attention(
        band.to_query_blocks(q), keys, values, mask, dropout_p=dropout, scale=qkv.shape[-1] ** -0.5
    )
    return band.from_query_blocks(out).transpose(0, 1)


def _attention_mask(
    band: BlockBand, layout: Layout, pattern: AttentionPattern, global_tokens: Tensor, separate_sides: bool
) -> Tensor:
    """(1, blocks, block_size, keys of the band + global tokens) bool: keys in the window, and global tokens outside it.

    With `separate_sides` global tokens have two columns each: one for queries after them, one for queries before.
    """
    seq_id, position = layout.seq_id, layout.position
    local_mask = band.attention_mask(seq_id) & (band.relative_positions(seq_id.device) % pattern.dilation == 0)
    distance = band.to_query_blocks(position[:, None]) - position[global_tokens]
    global_mask = (band.to_query_blocks(seq_id[:, None], pad_value=-1) == seq_id[global_tokens]) & ~pattern.in_window(distance)
    if pattern.causal:
        global_mask = global_mask & (distance >= 0)
    if separate_sides:
        global_mask = torch.cat([global_mask & (distance >= 0), global_mask & (distance < 0)], -1)
    return torch.cat([local_mask, global_mask], dim=-1)[None]
