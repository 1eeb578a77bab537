"""Attention for short sequences: each fits into one tile, which a program reads once, forward and backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SEQLEN = 128  # the scores of a sequence must fit into registers
HEAD_DIMS = (32, 64)  # larger ones need more shared memory than there is
BLOCK_Q = 32  # queries at a time in the backward pass


def short_attention(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int, causal: bool) -> Tensor:
    """qkv: (tokens, 3 * hidden_size), queries, keys and values concatenated. Returns (tokens, hidden_size)."""
    return _ShortAttention.apply(qkv, cu_seqlens, max_seqlen, num_heads, causal)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int, causal: bool) -> Tensor:
        qkv, hidden_size = qkv.contiguous(), qkv.shape[1] // 3
        out = qkv.new_empty(len(qkv), hidden_size)
        ctx.grid = (num_heads, len(cu_seqlens) - 1)
        ctx.shape = {
            "HEAD_DIM": hidden_size // num_heads,
            "BLOCK_SEQ": max(32, triton.next_power_of_2(max_seqlen)),
            "CAUSAL": causal,
        }
        _forward[ctx.grid](qkv, out, cu_seqlens, num_heads, _scale(ctx), **ctx.shape, num_warps=8, maxnreg=128)
        ctx.save_for_backward(qkv, cu_seqlens)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        qkv, cu_seqlens = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        _backward[ctx.grid](
            qkv,
            grad_out.contiguous(),
            grad_qkv,
            cu_seqlens,
            ctx.grid[0],
            _scale(ctx),
            **ctx.shape,
            BLOCK_Q=BLOCK_Q,
            num_warps=4,
        )
        return grad_qkv, None, None, None, None


def _scale(ctx: Any) -> float:
    """1 / sqrt(head_dim), times log2(e), as the softmax uses exp2."""
    return float(ctx.shape["HEAD_DIM"] ** -0.5 * 1.4426950408889634)


@triton.jit
def _load_rows(x, row, mask, stride, HEAD_DIM: tl.constexpr):
    return tl.load(x + row[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :], mask=mask[:, None], other=0.0)


@triton.jit
def _store_rows(x, value, row, mask, stride, HEAD_DIM: tl.constexpr):
    tl.store(x + row[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :], value.to(x.dtype.element_ty), mask=mask[:, None])


@triton.jit
def _attention_probs(scores, key, query, length, CAUSAL: tl.constexpr):
    """(keys, queries): softmax over the visible keys of each query."""
    visible = (key < length)[:, None] & (query >= 0)[None, :]
    if CAUSAL:
        visible = visible & (key[:, None] <= query[None, :])
    scores = tl.where(visible, scores, float("-inf"))
    exp_scores = tl.exp2(scores - tl.max(scores, 0)[None, :])
    return exp_scores / tl.sum(exp_scores, 0)[None, :]


@triton.jit
def _forward(qkv, out, cu_seqlens, num_heads, scale, HEAD_DIM: tl.constexpr, BLOCK_SEQ: tl.constexpr, CAUSAL: tl.constexpr):
    head, sequence = tl.program_id(0), tl.program_id(1)
    start = tl.load(cu_seqlens + sequence)
    length, hidden_size = tl.load(cu_seqlens + sequence + 1) - start, num_heads * HEAD_DIM
    row = tl.arange(0, BLOCK_SEQ)
    mask = row < length
    x = qkv + start.to(tl.int64) * (3 * hidden_size) + head * HEAD_DIM
    q, k = (
        _load_rows(x, row, mask, 3 * hidden_size, HEAD_DIM),
        _load_rows(x + hidden_size, row, mask, 3 * hidden_size, HEAD_DIM),
    )
    scores = tl.dot(q, tl.trans(k)) * scale
    visible = (row >= 0)[:, None] & mask[None, :]
    if CAUSAL:
        visible = visible & (row[:, None] >= row[None, :])
    scores = tl.where(visible, scores, float("-inf"))
    exp_scores = tl.exp2(scores - tl.max(scores, 1)[:, None])
    v = _load_rows(x + 2 * hidden_size, row, mask, 3 * hidden_size, HEAD_DIM)
    y = tl.dot(exp_scores.to(v.dtype), v) / tl.sum(exp_scores, 1)[:, None]
    _store_rows(out + start.to(tl.int64) * hidden_size + head * HEAD_DIM, y, row, mask, hidden_size, HEAD_DIM)


@triton.jit
def _backward(
    qkv, grad_out, grad_qkv, cu_seqlens, num_heads, scale, HEAD_DIM: tl.constexpr, BLOCK_SEQ: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """All keys of a sequence, BLOCK_Q queries at a time: dk and dv are accumulated in registers."""
    head, sequence = tl.program_id(0), tl.program_id(1)
    start = tl.load(cu_seqlens + sequence)
    length, hidden_size = tl.load(cu_seqlens + sequence + 1) - start, num_heads * HEAD_DIM
    stride, offset = 3 * hidden_size, start.to(tl.int64) * (3 * hidden_size) + head * HEAD_DIM
    row = tl.arange(0, BLOCK_SEQ)
    mask = row < length
    x, grad_ptr, grad_out_ptr = qkv + offset, grad_qkv + offset, grad_out + start.to(tl.int64) * hidden_size + head * HEAD_DIM
    k, v = (
        _load_rows(x + hidden_size, row, mask, stride, HEAD_DIM),
        _load_rows(x + 2 * hidden_size, row, mask, stride, HEAD_DIM),
    )
    dk, dv = tl.zeros((BLOCK_SEQ, HEAD_DIM), tl.float32), tl.zeros((BLOCK_SEQ, HEAD_DIM), tl.float32)
    for first_query in range(0, BLOCK_SEQ, BLOCK_Q):
        query = first_query + tl.arange(0, BLOCK_Q)
        query_mask = query < length
        q, grad = (
            _load_rows(x, query, query_mask, stride, HEAD_DIM),
            _load_rows(grad_out_ptr, query, query_mask, hidden_size, HEAD_DIM),
        )
        probs = _attention_probs(tl.dot(k, tl.trans(q)) * scale, row, query, length, CAUSAL)
        dv = tl.dot(probs.to(q.dtype), grad, dv)
        grad_scores = tl.dot(v, tl.trans(grad))
        grad_scores = probs * (grad_scores - tl.sum(probs * grad_scores, 0)[None, :])
        grad_scores = (grad_scores * (scale * 0.6931471805599453)).to(q.dtype)
        dk = tl.dot(grad_scores, q, dk)
        _store_rows(grad_ptr, tl.dot(tl.trans(grad_scores), k), query, query_mask, stride, HEAD_DIM)
    _store_rows(grad_ptr + hidden_size, dk, row, mask, stride, HEAD_DIM)
    _store_rows(grad_ptr + 2 * hidden_size, dv, row, mask, stride, HEAD_DIM)
