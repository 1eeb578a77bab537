"""Longformer's global keys merged into the output of local attention, in one pass over memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_Q = 64  # queries per program
GlobalIndex = tuple[Tensor, Tensor, Tensor, Tensor]  # seq_id and position of the tokens; global_tokens; cu_global
TensorTriple = tuple[Tensor, Tensor, Tensor]
WindowSpec = tuple[int, int, bool]  # max_distance, dilation, causal


def supports_head_dim(qkv: Tensor) -> bool:
    """Whether head_dim is a power of two from 8 to 256: a program holds whole heads."""
    head_dim = qkv.shape[-1]
    return head_dim & (head_dim - 1) == 0 and 8 <= head_dim <= 256


def merge_global_attention(qkv: Tensor, out: Tensor, lse: Tensor, index: GlobalIndex, window: WindowSpec, scale: float) -> None:
    """Adds the global keys outside the window to `out` (tokens, heads, head_dim) and `lse` (heads, tokens), in place."""
    (num_tokens, num_heads, head_dim), (max_distance, dilation, causal) = out.shape, window
    _forward[(triton.cdiv(num_tokens, BLOCK_Q), num_heads)](
        qkv,
        out,
        lse,
        *index,
        num_tokens,
        scale,
        max_distance,
        DILATION=dilation,
        CAUSAL=causal,
        HEAD_DIM=head_dim,
        BLOCK_Q=BLOCK_Q,
    )


def merge_global_attention_backward(
    grad_out: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    local_grads: TensorTriple,
    index: GlobalIndex,
    window: WindowSpec,
    scale: float,
) -> TensorTriple:
    """Gradients of qkv, and their sums in float32.

    Returns (tokens, 3, heads, head_dim), `local_grads` with the gradients of global attention added to those of the queries;
    (rows, 3, heads, head_dim), whose sum over rows is the sum of all gradients over tokens; and, a view of its last rows,
    (global tokens, 2, heads, head_dim), the gradients still to be added to the keys and values of the global tokens.
    """
    (num_tokens, num_heads, head_dim), (max_distance, dilation, causal) = out.shape, window
    grad_qkv, num_programs = torch.empty_like(qkv), triton.cdiv(num_tokens, BLOCK_Q)
    partial_sums = torch.zeros(num_programs + index[2].shape[0], 3, num_heads, head_dim, dtype=torch.float32, device=qkv.device)
    _backward[(num_programs, num_heads)](
        grad_out, qkv, out, lse, *(t.contiguous() for t in local_grads), grad_qkv, partial_sums, *index, num_tokens, scale,
        max_distance, DILATION=dilation, CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_Q=BLOCK_Q,
    )  # fmt: skip
    return grad_qkv, partial_sums, partial_sums[num_programs:, 1:]


@triton.jit
def _is_outside_window(
    query_seq_id, query_position, seq_id, position, global_token, max_distance, DILATION: tl.constexpr, CAUSAL: tl.constexpr
):
    """(queries,) bool: same sequence as the global token, which is outside the window and, if causal, not in the future."""
    distance = query_position - tl.load(position + global_token)
    in_window = (distance <= max_distance) & (distance >= -max_distance)
    if DILATION > 1:
        in_window = in_window & (distance % DILATION == 0)
    outside = (query_seq_id == tl.load(seq_id + global_token)) & (in_window == 0)
    if CAUSAL:
        outside = outside & (distance >= 0)
    return outside


@triton.jit
def _forward(
    qkv, out, lse, seq_id, position, global_tokens, cu_global, num_tokens, scale, max_distance, DILATION: tl.constexpr,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    head, hidden_size = tl.program_id(1), tl.num_programs(1) * HEAD_DIM
    row = tl.program_id(0).to(tl.int64) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    mask, column = row < num_tokens, head * HEAD_DIM + tl.arange(0, HEAD_DIM)
    query_seq_id, query_position = tl.load(seq_id + row, mask=mask, other=-1), tl.load(position + row, mask=mask, other=0)
    offsets = row[:, None] * hidden_size + column[None, :]
    queries = tl.load(qkv + row[:, None] * (3 * hidden_size) + column[None, :], mask=mask[:, None], other=0.0).to(tl.float32)
    acc = tl.load(out + offsets, mask=mask[:, None], other=0.0).to(tl.float32)
    row_lse = tl.load(lse + head * num_tokens + row, mask=mask, other=0.0)
    begin = tl.load(cu_global + tl.load(seq_id + tl.program_id(0).to(tl.int64) * BLOCK_Q))
    end = tl.load(cu_global + tl.max(query_seq_id, 0) + 1)
    for i in range(begin, end):
        global_token = tl.load(global_tokens + i)
        key = tl.load(qkv + (3 * global_token + 1) * hidden_size + column).to(tl.float32)
        value = tl.load(qkv + (3 * global_token + 2) * hidden_size + column).to(tl.float32)
        score = tl.sum(queries * key[None, :], 1) * scale
        score = tl.where(
            _is_outside_window(query_seq_id, query_position, seq_id, position, global_token, max_distance, DILATION, CAUSAL),
            score,
            float("-inf"),
        )
        max_score = tl.maximum(row_lse, score)
        new_lse = max_score + tl.log(tl.exp(row_lse - max_score) + tl.exp(score - max_score))
        acc = acc * tl.exp(row_lse - new_lse)[:, None] + tl.exp(score - new_lse)[:, None] * value[None, :]
        row_lse = new_lse
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=mask[:, None])
    tl.store(lse + head * num_tokens + row, row_lse, mask=mask)


@triton.jit
def _backward(
    grad_out, qkv, out, lse, dq, dk, dv, grad_qkv, partial_sums, seq_id, position, global_tokens, cu_global, num_tokens,
    scale, max_distance, DILATION: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):  # fmt: skip
    head, hidden_size = tl.program_id(1), tl.num_programs(1) * HEAD_DIM
    row = tl.program_id(0).to(tl.int64) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    mask, column = row < num_tokens, head * HEAD_DIM + tl.arange(0, HEAD_DIM)
    query_seq_id, query_position = tl.load(seq_id + row, mask=mask, other=-1), tl.load(position + row, mask=mask, other=0)
    offsets, qkv_offsets = row[:, None] * hidden_size + column[None, :], row[:, None] * (3 * hidden_size) + column[None, :]
    grad_k = tl.load(dk + offsets, mask=mask[:, None], other=0.0)
    grad_v = tl.load(dv + offsets, mask=mask[:, None], other=0.0)
    queries = tl.load(qkv + qkv_offsets, mask=mask[:, None], other=0.0).to(tl.float32)
    grad = tl.load(grad_out + offsets, mask=mask[:, None], other=0.0).to(tl.float32)
    delta = tl.sum(grad * tl.load(out + offsets, mask=mask[:, None], other=0.0).to(tl.float32), 1)
    row_lse = tl.load(lse + head * num_tokens + row, mask=mask, other=0.0)
    grad_q = tl.load(dq + offsets, mask=mask[:, None], other=0.0).to(tl.float32)
    begin = tl.load(cu_global + tl.load(seq_id + tl.program_id(0).to(tl.int64) * BLOCK_Q))
    end = tl.load(cu_global + tl.max(query_seq_id, 0) + 1)
    for i in range(begin, end):
        global_token = tl.load(global_tokens + i)
        key = tl.load(qkv + (3 * global_token + 1) * hidden_size + column).to(tl.float32)
        value = tl.load(qkv + (3 * global_token + 2) * hidden_size + column).to(tl.float32)
        score = tl.sum(queries * key[None, :], 1) * scale
        outside = _is_outside_window(
            query_seq_id, query_position, seq_id, position, global_token, max_distance, DILATION, CAUSAL
        )
        prob = tl.where(outside, tl.exp(score - row_lse), 0.0)
        grad_score = prob * (tl.sum(grad * value[None, :], 1) - delta) * scale
        grad_q += grad_score[:, None] * key[None, :]
        global_sums = partial_sums + (tl.num_programs(0) + i) * (3 * hidden_size) + column
        tl.atomic_add(global_sums + hidden_size, tl.sum(grad_score[:, None] * queries, 0))
        tl.atomic_add(global_sums + 2 * hidden_size, tl.sum(prob[:, None] * grad, 0))
    tl.store(grad_qkv + qkv_offsets, grad_q.to(grad_qkv.dtype.element_ty), mask=mask[:, None])
    tl.store(grad_qkv + qkv_offsets + hidden_size, grad_k, mask=mask[:, None])
    tl.store(grad_qkv + qkv_offsets + 2 * hidden_size, grad_v, mask=mask[:, None])
    program_sums = partial_sums + tl.program_id(0) * (3 * hidden_size) + column
    tl.store(program_sums, tl.sum(grad_q, 0))
    tl.store(program_sums + hidden_size, tl.sum(grad_k.to(tl.float32), 0))
    tl.store(program_sums + 2 * hidden_size, tl.sum(grad_v.to(tl.float32), 0))
