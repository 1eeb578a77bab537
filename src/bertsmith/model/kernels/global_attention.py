"""Few keys that many queries see beyond their windows, joined to what the windows gave in one pass over memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TALL = 64  # queries of a program
GlobalIndex = tuple[Tensor, Tensor, Tensor, Tensor]  # owner and place of tokens; anchors among them; where each owner's begin
TensorTriple = tuple[Tensor, Tensor, Tensor]
WindowSpec = tuple[int, int, bool]  # how far a window reaches, in tokens; its step; causal


def supports_head_dim(qkv: Tensor) -> bool:
    """A program holds whole heads, whose width is a power of two."""
    width = qkv.shape[-1]
    return width & (width - 1) == 0 and 8 <= width <= 256


def merge_global_attention(qkv: Tensor, out: Tensor, lse: Tensor, index: GlobalIndex, window: WindowSpec, scale: float) -> None:
    """Changes `out` (tokens, heads, width) and `sums` (heads, tokens) to be of the anchors beyond the window, too."""
    (tokens, heads, width), (reach, step, causal) = out.shape, window
    _forward[(triton.cdiv(tokens, TALL), heads)](
        qkv, out, lse, *index, tokens, scale, reach, STEP=step, CAUSAL=causal, WIDTH=width, TALL=TALL
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
    """(tokens, 3, heads, width): those in `down` (of queries, keys and values, each by itself), and to the queries' added what
    anchors do. In float32, (some, 3, heads, width): what they add up to when added up; and, as a part of that, (anchors, 2,
    heads, width): what is still to be added to the keys and values of anchors."""
    (tokens, heads, width), (reach, step, causal) = out.shape, window
    slope, programs = torch.empty_like(qkv), triton.cdiv(tokens, TALL)
    totals = torch.zeros(programs + index[2].shape[0], 3, heads, width, dtype=torch.float32, device=qkv.device)
    _backward[(programs, heads)](
        grad_out, qkv, out, lse, *(t.contiguous() for t in local_grads), slope, totals, *index, tokens, scale, reach,
        STEP=step, CAUSAL=causal, WIDTH=width, TALL=TALL,
    )  # fmt: skip
    return slope, totals, totals[programs:, 1:]


@triton.jit
def _is_outside_window(
    query_seq_id, query_position, seq_id, position, global_token, max_distance, STEP: tl.constexpr, CAUSAL: tl.constexpr
):
    """(queries,): those of the anchor's sequence that do not see it through their window, nor before it comes."""
    behind = query_position - tl.load(position + global_token)
    near = (behind <= max_distance) & (behind >= -max_distance)
    if STEP > 1:
        near = near & (behind % STEP == 0)
    far = (query_seq_id == tl.load(seq_id + global_token)) & (near == 0)
    if CAUSAL:
        far = far & (behind >= 0)
    return far


@triton.jit
def _forward(qkv, out, lse, seq_id, position, global_tokens, cu_global, num_tokens, scale, max_distance, STEP: tl.constexpr, CAUSAL: tl.constexpr,
             WIDTH: tl.constexpr, TALL: tl.constexpr):  # fmt: skip
    head, side = tl.program_id(1), tl.num_programs(1) * WIDTH
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    real, column = row < num_tokens, head * WIDTH + tl.arange(0, WIDTH)
    mine, here = tl.load(seq_id + row, mask=real, other=-1), tl.load(position + row, mask=real, other=0)
    at = row[:, None] * side + column[None, :]
    asked = tl.load(qkv + row[:, None] * (3 * side) + column[None, :], mask=real[:, None], other=0.0).to(tl.float32)
    mixed = tl.load(out + at, mask=real[:, None], other=0.0).to(tl.float32)
    total = tl.load(lse + head * num_tokens + row, mask=real, other=0.0)
    begin = tl.load(cu_global + tl.load(seq_id + tl.program_id(0).to(tl.int64) * TALL))
    end = tl.load(cu_global + tl.max(mine, 0) + 1)
    for number in range(begin, end):
        anchor = tl.load(global_tokens + number)
        key = tl.load(qkv + (3 * anchor + 1) * side + column).to(tl.float32)
        value = tl.load(qkv + (3 * anchor + 2) * side + column).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        score = tl.where(
            _is_outside_window(mine, here, seq_id, position, anchor, max_distance, STEP, CAUSAL), score, float("-inf")
        )
        most = tl.maximum(total, score)
        more = most + tl.log(tl.exp(total - most) + tl.exp(score - most))
        mixed = mixed * tl.exp(total - more)[:, None] + tl.exp(score - more)[:, None] * value[None, :]
        total = more
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(lse + head * num_tokens + row, total, mask=real)


@triton.jit
def _backward(grad_out, qkv, out, lse, dq, dk, dv, grad_qkv, partial_sums, seq_id, position, global_tokens, cu_global, num_tokens, scale, max_distance,
              STEP: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr):  # fmt: skip
    head, side = tl.program_id(1), tl.num_programs(1) * WIDTH
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    real, column = row < num_tokens, head * WIDTH + tl.arange(0, WIDTH)
    mine, here = tl.load(seq_id + row, mask=real, other=-1), tl.load(position + row, mask=real, other=0)
    at, to = row[:, None] * side + column[None, :], row[:, None] * (3 * side) + column[None, :]
    keys = tl.load(dk + at, mask=real[:, None], other=0.0)
    values = tl.load(dv + at, mask=real[:, None], other=0.0)
    asked = tl.load(qkv + to, mask=real[:, None], other=0.0).to(tl.float32)
    down = tl.load(grad_out + at, mask=real[:, None], other=0.0).to(tl.float32)
    mean = tl.sum(down * tl.load(out + at, mask=real[:, None], other=0.0).to(tl.float32), 1)
    total = tl.load(lse + head * num_tokens + row, mask=real, other=0.0)
    turned = tl.load(dq + at, mask=real[:, None], other=0.0).to(tl.float32)
    begin = tl.load(cu_global + tl.load(seq_id + tl.program_id(0).to(tl.int64) * TALL))
    end = tl.load(cu_global + tl.max(mine, 0) + 1)
    for number in range(begin, end):
        anchor = tl.load(global_tokens + number)
        key = tl.load(qkv + (3 * anchor + 1) * side + column).to(tl.float32)
        value = tl.load(qkv + (3 * anchor + 2) * side + column).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        far = _is_outside_window(mine, here, seq_id, position, anchor, max_distance, STEP, CAUSAL)
        weight = tl.where(far, tl.exp(score - total), 0.0)
        turn = weight * (tl.sum(down * value[None, :], 1) - mean) * scale
        turned += turn[:, None] * key[None, :]
        more = partial_sums + (tl.num_programs(0) + number) * (3 * side) + column
        tl.atomic_add(more + side, tl.sum(turn[:, None] * asked, 0))
        tl.atomic_add(more + 2 * side, tl.sum(weight[:, None] * down, 0))
    tl.store(grad_qkv + to, turned.to(grad_qkv.dtype.element_ty), mask=real[:, None])
    tl.store(grad_qkv + to + side, keys, mask=real[:, None])
    tl.store(grad_qkv + to + 2 * side, values, mask=real[:, None])
    sums_at = partial_sums + tl.program_id(0) * (3 * side) + column
    tl.store(sums_at, tl.sum(turned, 0))
    tl.store(sums_at + side, tl.sum(keys.to(tl.float32), 0))
    tl.store(sums_at + 2 * side, tl.sum(values.to(tl.float32), 0))
