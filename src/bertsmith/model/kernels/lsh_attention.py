"""Attention among the nearest of one bucket: tokens are read where they lie, and tiles without a meeting are left out."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)  # of a head
TILE = 64  # tokens of a round's order, down and across
TensorPair = tuple[Tensor, Tensor]


def fused_lsh_attention(
    q: Tensor, k: Tensor, v: Tensor, sorted_idx: Tensor, bucket_rank: Tensor, half_window: int, causal: bool
) -> TensorPair:
    """As `buckets.met`."""
    return _FusedLshAttention.apply(q, k, v, sorted_idx, bucket_rank, half_window, causal)


class _FusedLshAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sorted_idx: Tensor, bucket_rank: Tensor, half_window: int, causal: bool
    ) -> TensorPair:
        q, k, v, sorted_idx, bucket_rank = (
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            sorted_idx.int().contiguous(),
            bucket_rank.contiguous(),
        )
        rounds, heads, tokens = sorted_idx.shape
        out, mass = (
            q.new_empty(*sorted_idx.shape, q.shape[2]),
            torch.empty(sorted_idx.shape, dtype=torch.float32, device=q.device),
        )
        ctx.grid = (triton.cdiv(tokens, TILE), rounds * heads)
        ctx.sizes = (heads, tokens, half_window)
        ctx.shape = {"ROUNDS": rounds, "WIDTH": q.shape[2], "TILE": TILE, "CAUSAL": causal, "num_warps": 4}
        _forward[ctx.grid](q, k, v, sorted_idx, bucket_rank, out, mass, *ctx.sizes, **ctx.shape)
        ctx.save_for_backward(q, k, v, sorted_idx, bucket_rank, out, mass)
        return out, mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, k, v, order, code, out, mass = ctx.saved_tensors
        grad = grads[0].contiguous()
        lean = (grads[1] - (grad * out).sum(-1, dtype=torch.float32)).contiguous()  # what every score of a token shares
        down = [torch.empty_like(out) for _ in range(3)]
        given = (q, k, v, order, code, grad, mass, lean)
        _backward_q[ctx.grid](*given, down[0], *ctx.sizes, **ctx.shape)
        _backward_kv[ctx.grid](*given, *down[1:], *ctx.sizes, **ctx.shape)
        return *(each.sum(0) for each in down), None, None, None, None


@triton.jit
def _load_rows(x, row, mask, WIDTH: tl.constexpr):
    at = row.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(x + at, mask=mask[:, None], other=0.0)


@triton.jit
def _store_rows(x, value, row, mask, WIDTH: tl.constexpr):
    at = row.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(x + at, value.to(x.dtype.element_ty), mask=mask[:, None])


@triton.jit
def _scores(
    q,
    k,
    bucket_rank,
    query,
    key,
    query_mask,
    key_mask,
    is_self,
    hash_round,
    num_heads,
    num_tokens,
    half_window,
    ROUNDS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """(queries, keys): -inf where two do not meet in this round, or have met in one before."""
    real = query_mask[:, None] & key_mask[None, :]
    seen = real
    for number in tl.static_range(ROUNDS):
        if number <= hash_round:
            codes = bucket_rank + number * num_heads * num_tokens
            behind = (
                tl.load(codes + query, mask=query_mask, other=0)[:, None]
                - tl.load(codes + key, mask=key_mask, other=0)[None, :]
            )
            near = (behind <= half_window) & (behind >= (0 if CAUSAL else -half_window))
            seen = seen & (near ^ (number != hash_round))
    scores = tl.where(seen, tl.dot(q, tl.trans(k)).to(tl.float32), float("-inf"))
    return tl.where(is_self & real, -1e5, scores)


@triton.jit
def _tiles_overlap(bucket_rank, sorted_idx, query_first, query_last, key_first, key_last, half_window):
    """Whether any of the tokens from `begin` to `end` of an order lies near any from `first` to `last`: codes grow along it."""
    nearest = tl.load(bucket_rank + tl.load(sorted_idx + key_last)) - tl.load(bucket_rank + tl.load(sorted_idx + query_first))
    furthest = tl.load(bucket_rank + tl.load(sorted_idx + key_first)) - tl.load(bucket_rank + tl.load(sorted_idx + query_last))
    return (nearest >= -half_window) & (furthest <= half_window)


@triton.jit
def _forward(q, k, v, sorted_idx, bucket_rank, out, lse, num_heads, num_tokens, half_window, ROUNDS: tl.constexpr, WIDTH: tl.constexpr,
             TILE: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    first, turn, head = tl.program_id(0) * TILE, tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    here, round_here = head.to(tl.int64) * num_tokens, tl.program_id(1).to(tl.int64) * num_tokens
    q, k, v, bucket_rank = q + here * WIDTH, k + here * WIDTH, v + here * WIDTH, bucket_rank + here
    sorted_idx, out, lse, own = (
        sorted_idx + round_here,
        out + round_here * WIDTH,
        lse + round_here,
        bucket_rank + turn.to(tl.int64) * num_heads * num_tokens,
    )
    place = first + tl.arange(0, TILE)
    asked = place < num_tokens
    query = tl.load(sorted_idx + place, mask=asked, other=0)
    x = _load_rows(q, query, asked, WIDTH)
    most, total = tl.full((TILE,), float("-inf"), tl.float32), tl.zeros((TILE,), tl.float32)
    sums = tl.zeros((TILE, WIDTH), tl.float32)
    last = tl.minimum(first + TILE, num_tokens) - 1
    begin = tl.maximum(first - half_window, 0) // TILE * TILE
    for start in range(begin, last + 1 if CAUSAL else tl.minimum(last + half_window + 1, num_tokens), TILE):
        if _tiles_overlap(own, sorted_idx, first, last, start, tl.minimum(start + TILE, num_tokens) - 1, half_window):
            there = start + tl.arange(0, TILE)
            real = there < num_tokens
            key = tl.load(sorted_idx + there, mask=real, other=0)
            same = place[:, None] == there[None, :]
            scores = _scores(x, _load_rows(k, key, real, WIDTH), bucket_rank, query, key, asked, real, same, turn, num_heads, num_tokens, half_window,
                             ROUNDS, CAUSAL)  # fmt: skip
            higher = tl.maximum(most, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            grown, shrunk = tl.exp(scores - base[:, None]), tl.exp(most - base)
            values = _load_rows(v, key, real, WIDTH)
            sums = sums * shrunk[:, None] + tl.dot(grown.to(values.dtype), values)
            total, most = total * shrunk + tl.sum(grown, 1), higher
    total = tl.where(asked, total, 1.0)
    _store_rows(out, sums / total[:, None], query, asked, WIDTH)
    tl.store(lse + query, most + tl.log(total), mask=asked)


@triton.jit
def _backward_q(q, k, v, sorted_idx, bucket_rank, grad_out, lse, neg_delta, grad_q, num_heads, num_tokens, half_window, ROUNDS: tl.constexpr,
                      WIDTH: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    first, turn, head = tl.program_id(0) * TILE, tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    here, round_here = head.to(tl.int64) * num_tokens, tl.program_id(1).to(tl.int64) * num_tokens
    q, k, v, bucket_rank = q + here * WIDTH, k + here * WIDTH, v + here * WIDTH, bucket_rank + here
    sorted_idx, lse, neg_delta, own = (
        sorted_idx + round_here,
        lse + round_here,
        neg_delta + round_here,
        bucket_rank + turn.to(tl.int64) * num_heads * num_tokens,
    )
    grad_out, grad_q = grad_out + round_here * WIDTH, grad_q + round_here * WIDTH
    place = first + tl.arange(0, TILE)
    asked = place < num_tokens
    query = tl.load(sorted_idx + place, mask=asked, other=0)
    x, slope = _load_rows(q, query, asked, WIDTH), _load_rows(grad_out, query, asked, WIDTH)
    sum_of, shared = tl.load(lse + query, mask=asked, other=0.0), tl.load(neg_delta + query, mask=asked, other=0.0)
    dq = tl.zeros((TILE, WIDTH), tl.float32)
    last = tl.minimum(first + TILE, num_tokens) - 1
    begin = tl.maximum(first - half_window, 0) // TILE * TILE
    for start in range(begin, last + 1 if CAUSAL else tl.minimum(last + half_window + 1, num_tokens), TILE):
        if _tiles_overlap(own, sorted_idx, first, last, start, tl.minimum(start + TILE, num_tokens) - 1, half_window):
            there = start + tl.arange(0, TILE)
            real = there < num_tokens
            key = tl.load(sorted_idx + there, mask=real, other=0)
            same, keys = place[:, None] == there[None, :], _load_rows(k, key, real, WIDTH)
            scores = _scores(
                x, keys, bucket_rank, query, key, asked, real, same, turn, num_heads, num_tokens, half_window, ROUNDS, CAUSAL
            )
            weights = tl.exp(scores - sum_of[:, None])
            ds = weights * (tl.dot(slope, tl.trans(_load_rows(v, key, real, WIDTH))) + shared[:, None])
            dq += tl.dot(tl.where(same, 0.0, ds).to(keys.dtype), keys)
    _store_rows(grad_q, dq, query, asked, WIDTH)


@triton.jit
def _backward_kv(q, k, v, sorted_idx, bucket_rank, grad_out, lse, neg_delta, grad_k, grad_v, num_heads, num_tokens, half_window, ROUNDS: tl.constexpr,
                   WIDTH: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    first, turn, head = tl.program_id(0) * TILE, tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    here, round_here = head.to(tl.int64) * num_tokens, tl.program_id(1).to(tl.int64) * num_tokens
    q, k, v, bucket_rank = q + here * WIDTH, k + here * WIDTH, v + here * WIDTH, bucket_rank + here
    sorted_idx, lse, neg_delta, own = (
        sorted_idx + round_here,
        lse + round_here,
        neg_delta + round_here,
        bucket_rank + turn.to(tl.int64) * num_heads * num_tokens,
    )
    grad_out, grad_k, grad_v = grad_out + round_here * WIDTH, grad_k + round_here * WIDTH, grad_v + round_here * WIDTH
    there = first + tl.arange(0, TILE)
    real = there < num_tokens
    key = tl.load(sorted_idx + there, mask=real, other=0)
    keys, values = _load_rows(k, key, real, WIDTH), _load_rows(v, key, real, WIDTH)
    dk, dv = tl.zeros((TILE, WIDTH), tl.float32), tl.zeros((TILE, WIDTH), tl.float32)
    last = tl.minimum(first + TILE, num_tokens) - 1
    begin = first if CAUSAL else tl.maximum(first - half_window, 0) // TILE * TILE
    for start in range(begin, tl.minimum(last + half_window + 1, num_tokens), TILE):
        if _tiles_overlap(own, sorted_idx, first, last, start, tl.minimum(start + TILE, num_tokens) - 1, half_window):
            place = start + tl.arange(0, TILE)
            asked = place < num_tokens
            query = tl.load(sorted_idx + place, mask=asked, other=0)
            x, slope = _load_rows(q, query, asked, WIDTH), _load_rows(grad_out, query, asked, WIDTH)
            sum_of, shared = tl.load(lse + query, mask=asked, other=0.0), tl.load(neg_delta + query, mask=asked, other=0.0)
            same = place[:, None] == there[None, :]
            scores = _scores(
                x, keys, bucket_rank, query, key, asked, real, same, turn, num_heads, num_tokens, half_window, ROUNDS, CAUSAL
            )
            weights = tl.exp(scores - sum_of[:, None])
            ds = weights * (tl.dot(slope, tl.trans(values)) + shared[:, None])
            dv += tl.dot(tl.trans(weights.to(slope.dtype)), slope)
            dk += tl.dot(tl.trans(tl.where(same, 0.0, ds).to(x.dtype)), x)
    _store_rows(grad_k, dk, key, real, WIDTH)
    _store_rows(grad_v, dv, key, real, WIDTH)
