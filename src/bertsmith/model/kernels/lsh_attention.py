"""Reformer's LSH attention: tokens are gathered by index, and tiles without neighbours are skipped."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)
BLOCK_SIZE = 64  # queries and keys per tile, in the order of a hash round
TensorPair = tuple[Tensor, Tensor]


def fused_lsh_attention(
    q: Tensor, k: Tensor, v: Tensor, sorted_idx: Tensor, bucket_rank: Tensor, half_window: int, causal: bool
) -> TensorPair:
    """As `lsh_attention` in mixers/reformer/lsh.py."""
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
        num_hashes, num_heads, num_tokens = sorted_idx.shape
        out, lse = (
            q.new_empty(*sorted_idx.shape, q.shape[2]),
            torch.empty(sorted_idx.shape, dtype=torch.float32, device=q.device),
        )
        ctx.grid = (triton.cdiv(num_tokens, BLOCK_SIZE), num_hashes * num_heads)
        ctx.sizes = (num_heads, num_tokens, half_window)
        ctx.shape = {
            "NUM_HASHES": num_hashes,
            "HEAD_DIM": q.shape[2],
            "BLOCK_SIZE": BLOCK_SIZE,
            "CAUSAL": causal,
            "num_warps": 4,
        }
        _forward[ctx.grid](q, k, v, sorted_idx, bucket_rank, out, lse, *ctx.sizes, **ctx.shape)
        ctx.save_for_backward(q, k, v, sorted_idx, bucket_rank, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, k, v, sorted_idx, bucket_rank, out, lse = ctx.saved_tensors
        grad_out = grads[0].contiguous()
        neg_delta = (
            grads[1] - (grad_out * out).sum(-1, dtype=torch.float32)
        ).contiguous()  # the same for all scores of a query
        round_grads = [torch.empty_like(out) for _ in range(3)]
        args = (q, k, v, sorted_idx, bucket_rank, grad_out, lse, neg_delta)
        _backward_q[ctx.grid](*args, round_grads[0], *ctx.sizes, **ctx.shape)
        _backward_kv[ctx.grid](*args, *round_grads[1:], *ctx.sizes, **ctx.shape)
        return *(grad.sum(0) for grad in round_grads), None, None, None, None


@triton.jit
def _load_rows(x, row, mask, HEAD_DIM: tl.constexpr):
    offsets = row.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(x + offsets, mask=mask[:, None], other=0.0)


@triton.jit
def _store_rows(x, value, row, mask, HEAD_DIM: tl.constexpr):
    offsets = row.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(x + offsets, value.to(x.dtype.element_ty), mask=mask[:, None])


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
    NUM_HASHES: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """(queries, keys): -inf unless they are neighbours in this round and were not in an earlier one."""
    mask = query_mask[:, None] & key_mask[None, :]
    visible = mask
    for i in tl.static_range(NUM_HASHES):
        if i <= hash_round:
            ranks = bucket_rank + i * num_heads * num_tokens
            distance = (
                tl.load(ranks + query, mask=query_mask, other=0)[:, None]
                - tl.load(ranks + key, mask=key_mask, other=0)[None, :]
            )
            is_neighbor = (distance <= half_window) & (distance >= (0 if CAUSAL else -half_window))
            visible = visible & (is_neighbor ^ (i != hash_round))
    scores = tl.where(visible, tl.dot(q, tl.trans(k)).to(tl.float32), float("-inf"))
    return tl.where(is_self & mask, -1e5, scores)


@triton.jit
def _tiles_overlap(bucket_rank, sorted_idx, query_first, query_last, key_first, key_last, half_window):
    """Whether any query of a tile may have a neighbour among its keys: bucket ranks increase along the sorted order."""
    nearest = tl.load(bucket_rank + tl.load(sorted_idx + key_last)) - tl.load(bucket_rank + tl.load(sorted_idx + query_first))
    furthest = tl.load(bucket_rank + tl.load(sorted_idx + key_first)) - tl.load(bucket_rank + tl.load(sorted_idx + query_last))
    return (nearest >= -half_window) & (furthest <= half_window)


@triton.jit
def _forward(
    q, k, v, sorted_idx, bucket_rank, out, lse, num_heads, num_tokens, half_window, NUM_HASHES: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    first, hash_round, head = tl.program_id(0) * BLOCK_SIZE, tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    head_offset, round_offset = head.to(tl.int64) * num_tokens, tl.program_id(1).to(tl.int64) * num_tokens
    q, k, v, bucket_rank = (
        q + head_offset * HEAD_DIM,
        k + head_offset * HEAD_DIM,
        v + head_offset * HEAD_DIM,
        bucket_rank + head_offset,
    )
    sorted_idx, out, lse, round_rank = (
        sorted_idx + round_offset,
        out + round_offset * HEAD_DIM,
        lse + round_offset,
        bucket_rank + hash_round.to(tl.int64) * num_heads * num_tokens,
    )
    query_slot = first + tl.arange(0, BLOCK_SIZE)
    query_mask = query_slot < num_tokens
    query = tl.load(sorted_idx + query_slot, mask=query_mask, other=0)
    queries = _load_rows(q, query, query_mask, HEAD_DIM)
    max_score, sum_exp = tl.full((BLOCK_SIZE,), float("-inf"), tl.float32), tl.zeros((BLOCK_SIZE,), tl.float32)
    acc = tl.zeros((BLOCK_SIZE, HEAD_DIM), tl.float32)
    last = tl.minimum(first + BLOCK_SIZE, num_tokens) - 1
    first_key = tl.maximum(first - half_window, 0) // BLOCK_SIZE * BLOCK_SIZE
    for start in range(first_key, last + 1 if CAUSAL else tl.minimum(last + half_window + 1, num_tokens), BLOCK_SIZE):
        if _tiles_overlap(
            round_rank, sorted_idx, first, last, start, tl.minimum(start + BLOCK_SIZE, num_tokens) - 1, half_window
        ):
            key_slot = start + tl.arange(0, BLOCK_SIZE)
            key_mask = key_slot < num_tokens
            key = tl.load(sorted_idx + key_slot, mask=key_mask, other=0)
            is_self = query_slot[:, None] == key_slot[None, :]
            scores = _scores(
                queries, _load_rows(k, key, key_mask, HEAD_DIM), bucket_rank, query, key, query_mask, key_mask, is_self,
                hash_round, num_heads, num_tokens, half_window, NUM_HASHES, CAUSAL,
            )  # fmt: skip
            new_max = tl.maximum(max_score, tl.max(scores, 1))
            base = tl.where(new_max == float("-inf"), 0.0, new_max)
            exp_scores, correction = tl.exp(scores - base[:, None]), tl.exp(max_score - base)
            values = _load_rows(v, key, key_mask, HEAD_DIM)
            acc = acc * correction[:, None] + tl.dot(exp_scores.to(values.dtype), values)
            sum_exp, max_score = sum_exp * correction + tl.sum(exp_scores, 1), new_max
    sum_exp = tl.where(query_mask, sum_exp, 1.0)
    _store_rows(out, acc / sum_exp[:, None], query, query_mask, HEAD_DIM)
    tl.store(lse + query, max_score + tl.log(sum_exp), mask=query_mask)


@triton.jit
def _backward_q(
    q, k, v, sorted_idx, bucket_rank, grad_out, lse, neg_delta, grad_q, num_heads, num_tokens, half_window,
    NUM_HASHES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    first, hash_round, head = tl.program_id(0) * BLOCK_SIZE, tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    head_offset, round_offset = head.to(tl.int64) * num_tokens, tl.program_id(1).to(tl.int64) * num_tokens
    q, k, v, bucket_rank = (
        q + head_offset * HEAD_DIM,
        k + head_offset * HEAD_DIM,
        v + head_offset * HEAD_DIM,
        bucket_rank + head_offset,
    )
    sorted_idx, lse, neg_delta, round_rank = (
        sorted_idx + round_offset,
        lse + round_offset,
        neg_delta + round_offset,
        bucket_rank + hash_round.to(tl.int64) * num_heads * num_tokens,
    )
    grad_out, grad_q = grad_out + round_offset * HEAD_DIM, grad_q + round_offset * HEAD_DIM
    query_slot = first + tl.arange(0, BLOCK_SIZE)
    query_mask = query_slot < num_tokens
    query = tl.load(sorted_idx + query_slot, mask=query_mask, other=0)
    queries, grad = _load_rows(q, query, query_mask, HEAD_DIM), _load_rows(grad_out, query, query_mask, HEAD_DIM)
    row_lse, row_delta = (
        tl.load(lse + query, mask=query_mask, other=0.0),
        tl.load(neg_delta + query, mask=query_mask, other=0.0),
    )
    dq = tl.zeros((BLOCK_SIZE, HEAD_DIM), tl.float32)
    last = tl.minimum(first + BLOCK_SIZE, num_tokens) - 1
    first_key = tl.maximum(first - half_window, 0) // BLOCK_SIZE * BLOCK_SIZE
    for start in range(first_key, last + 1 if CAUSAL else tl.minimum(last + half_window + 1, num_tokens), BLOCK_SIZE):
        if _tiles_overlap(
            round_rank, sorted_idx, first, last, start, tl.minimum(start + BLOCK_SIZE, num_tokens) - 1, half_window
        ):
            key_slot = start + tl.arange(0, BLOCK_SIZE)
            key_mask = key_slot < num_tokens
            key = tl.load(sorted_idx + key_slot, mask=key_mask, other=0)
            is_self, keys = query_slot[:, None] == key_slot[None, :], _load_rows(k, key, key_mask, HEAD_DIM)
            scores = _scores(
                queries,
                keys,
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
                NUM_HASHES,
                CAUSAL,
            )
            probs = tl.exp(scores - row_lse[:, None])
            ds = probs * (tl.dot(grad, tl.trans(_load_rows(v, key, key_mask, HEAD_DIM))) + row_delta[:, None])
            dq += tl.dot(tl.where(is_self, 0.0, ds).to(keys.dtype), keys)
    _store_rows(grad_q, dq, query, query_mask, HEAD_DIM)


@triton.jit
def _backward_kv(
    q, k, v, sorted_idx, bucket_rank, grad_out, lse, neg_delta, grad_k, grad_v, num_heads, num_tokens, half_window,
    NUM_HASHES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    first, hash_round, head = tl.program_id(0) * BLOCK_SIZE, tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    head_offset, round_offset = head.to(tl.int64) * num_tokens, tl.program_id(1).to(tl.int64) * num_tokens
    q, k, v, bucket_rank = (
        q + head_offset * HEAD_DIM,
        k + head_offset * HEAD_DIM,
        v + head_offset * HEAD_DIM,
        bucket_rank + head_offset,
    )
    sorted_idx, lse, neg_delta, round_rank = (
        sorted_idx + round_offset,
        lse + round_offset,
        neg_delta + round_offset,
        bucket_rank + hash_round.to(tl.int64) * num_heads * num_tokens,
    )
    grad_out, grad_k, grad_v = (
        grad_out + round_offset * HEAD_DIM,
        grad_k + round_offset * HEAD_DIM,
        grad_v + round_offset * HEAD_DIM,
    )
    key_slot = first + tl.arange(0, BLOCK_SIZE)
    key_mask = key_slot < num_tokens
    key = tl.load(sorted_idx + key_slot, mask=key_mask, other=0)
    keys, values = _load_rows(k, key, key_mask, HEAD_DIM), _load_rows(v, key, key_mask, HEAD_DIM)
    dk, dv = tl.zeros((BLOCK_SIZE, HEAD_DIM), tl.float32), tl.zeros((BLOCK_SIZE, HEAD_DIM), tl.float32)
    last = tl.minimum(first + BLOCK_SIZE, num_tokens) - 1
    first_query = first if CAUSAL else tl.maximum(first - half_window, 0) // BLOCK_SIZE * BLOCK_SIZE
    for start in range(first_query, tl.minimum(last + half_window + 1, num_tokens), BLOCK_SIZE):
        if _tiles_overlap(
            round_rank, sorted_idx, first, last, start, tl.minimum(start + BLOCK_SIZE, num_tokens) - 1, half_window
        ):
            query_slot = start + tl.arange(0, BLOCK_SIZE)
            query_mask = query_slot < num_tokens
            query = tl.load(sorted_idx + query_slot, mask=query_mask, other=0)
            queries, grad = _load_rows(q, query, query_mask, HEAD_DIM), _load_rows(grad_out, query, query_mask, HEAD_DIM)
            row_lse, row_delta = (
                tl.load(lse + query, mask=query_mask, other=0.0),
                tl.load(neg_delta + query, mask=query_mask, other=0.0),
            )
            is_self = query_slot[:, None] == key_slot[None, :]
            scores = _scores(
                queries,
                keys,
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
                NUM_HASHES,
                CAUSAL,
            )
            probs = tl.exp(scores - row_lse[:, None])
            ds = probs * (tl.dot(grad, tl.trans(values)) + row_delta[:, None])
            dv += tl.dot(tl.trans(probs.to(grad.dtype)), grad)
            dk += tl.dot(tl.trans(tl.where(is_self, 0.0, ds).to(queries.dtype)), queries)
    _store_rows(grad_k, dk, key, key_mask, HEAD_DIM)
    _store_rows(grad_v, dv, key, key_mask, HEAD_DIM)
