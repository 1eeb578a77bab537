"""Attention within short sequences: each fits one tile, so that a program reads it once, there and back."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SEQLEN = 128  # tokens: a tile of scores that registers still hold
HEAD_DIMS = (32, 64)  # of a head; wider ones want more shared memory than there is
SOME = 32  # queries at a time on the way back


def short_attention(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int, causal: bool) -> Tensor:
    """(tokens, 3 x width): queries, keys and values side by side -> (tokens, width)."""
    return _ShortAttention.apply(qkv, cu_seqlens, max_seqlen, num_heads, causal)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int, causal: bool) -> Tensor:
        qkv, width = qkv.contiguous(), qkv.shape[1] // 3
        out = qkv.new_empty(len(qkv), width)
        ctx.grid = (num_heads, len(cu_seqlens) - 1)
        ctx.shape = {"WIDTH": width // num_heads, "TALL": max(32, triton.next_power_of_2(max_seqlen)), "CAUSAL": causal}
        _forward[ctx.grid](qkv, out, cu_seqlens, num_heads, _scale(ctx), **ctx.shape, num_warps=8, maxnreg=128)
        ctx.save_for_backward(qkv, cu_seqlens)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        qkv, starts = ctx.saved_tensors
        down = torch.empty_like(qkv)
        _backward[ctx.grid](
            qkv, grad_out.contiguous(), down, starts, ctx.grid[0], _scale(ctx), **ctx.shape, SOME=SOME, num_warps=4
        )
        return down, None, None, None, None


def _scale(ctx: Any) -> float:
    """Of the scores, in the base of two."""
    return float(ctx.shape["WIDTH"] ** -0.5 * 1.4426950408889634)


@triton.jit
def _load_rows(x, row, mask, stride, WIDTH: tl.constexpr):
    return tl.load(x + row[:, None] * stride + tl.arange(0, WIDTH)[None, :], mask=mask[:, None], other=0.0)


@triton.jit
def _store_rows(x, value, row, mask, stride, WIDTH: tl.constexpr):
    tl.store(x + row[:, None] * stride + tl.arange(0, WIDTH)[None, :], value.to(x.dtype.element_ty), mask=mask[:, None])


@triton.jit
def _attention_probs(scores, key, query, length, CAUSAL: tl.constexpr):
    """(keys, queries): each query's weights, which add up to 1, over the keys it may see."""
    seen = (key < length)[:, None] & (query >= 0)[None, :]
    if CAUSAL:
        seen = seen & (key[:, None] <= query[None, :])
    scores = tl.where(seen, scores, float("-inf"))
    grown = tl.exp2(scores - tl.max(scores, 0)[None, :])
    return grown / tl.sum(grown, 0)[None, :]


@triton.jit
def _forward(qkv, out, cu_seqlens, num_heads, scale, WIDTH: tl.constexpr, TALL: tl.constexpr, CAUSAL: tl.constexpr):
    head, sequence = tl.program_id(0), tl.program_id(1)
    begin = tl.load(cu_seqlens + sequence)
    length, width = tl.load(cu_seqlens + sequence + 1) - begin, num_heads * WIDTH
    row = tl.arange(0, TALL)
    real = row < length
    x = qkv + begin.to(tl.int64) * (3 * width) + head * WIDTH
    q, k = _load_rows(x, row, real, 3 * width, WIDTH), _load_rows(x + width, row, real, 3 * width, WIDTH)
    scores = tl.dot(q, tl.trans(k)) * scale
    seen = (row >= 0)[:, None] & real[None, :]
    if CAUSAL:
        seen = seen & (row[:, None] >= row[None, :])
    scores = tl.where(seen, scores, float("-inf"))
    grown = tl.exp2(scores - tl.max(scores, 1)[:, None])
    v = _load_rows(x + 2 * width, row, real, 3 * width, WIDTH)
    y = tl.dot(grown.to(v.dtype), v) / tl.sum(grown, 1)[:, None]
    _store_rows(out + begin.to(tl.int64) * width + head * WIDTH, y, row, real, width, WIDTH)


@triton.jit
def _backward(qkv, grad_out, grad_qkv, cu_seqlens, num_heads, scale, WIDTH: tl.constexpr, TALL: tl.constexpr, CAUSAL: tl.constexpr,
              SOME: tl.constexpr):  # fmt: skip
    """All keys down, some queries across at a time: each query's weights are whole, and registers hold what adds up."""
    head, sequence = tl.program_id(0), tl.program_id(1)
    begin = tl.load(cu_seqlens + sequence)
    length, width = tl.load(cu_seqlens + sequence + 1) - begin, num_heads * WIDTH
    stride, here = 3 * width, begin.to(tl.int64) * (3 * width) + head * WIDTH
    row = tl.arange(0, TALL)
    real = row < length
    x, to, grads = qkv + here, grad_qkv + here, grad_out + begin.to(tl.int64) * width + head * WIDTH
    k, v = _load_rows(x + width, row, real, stride, WIDTH), _load_rows(x + 2 * width, row, real, stride, WIDTH)
    dk, dv = tl.zeros((TALL, WIDTH), tl.float32), tl.zeros((TALL, WIDTH), tl.float32)
    for first in range(0, TALL, SOME):
        query = first + tl.arange(0, SOME)
        asked = query < length
        q, grad = _load_rows(x, query, asked, stride, WIDTH), _load_rows(grads, query, asked, width, WIDTH)
        weights = _attention_probs(tl.dot(k, tl.trans(q)) * scale, row, query, length, CAUSAL)
        dv = tl.dot(weights.to(q.dtype), grad, dv)
        slope = tl.dot(v, tl.trans(grad))
        slope = weights * (slope - tl.sum(weights * slope, 0)[None, :])
        slope = (slope * (scale * 0.6931471805599453)).to(q.dtype)
        dk = tl.dot(slope, q, dk)
        _store_rows(to, tl.dot(tl.trans(slope), k), query, asked, stride, WIDTH)
    _store_rows(to + width, dk, row, real, stride, WIDTH)
    _store_rows(to + 2 * width, dv, row, real, stride, WIDTH)
