"""Few keys that many queries see beyond their windows, joined to what the windows gave in one pass over memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TALL = 64  # queries of a program
Place = tuple[Tensor, Tensor, Tensor, Tensor]  # owner and place of tokens; anchors among them; where each owner's begin
Rule = tuple[int, int, bool]  # how far a window reaches, in tokens; its step; causal


def fits(q: Tensor) -> bool:
    """A program holds whole heads, whose width is a power of two."""
    return q.shape[-1] & (q.shape[-1] - 1) == 0 and 8 <= q.shape[-1] <= 256


def joined(q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, place: Place, rule: Rule, scale: float) -> None:
    """Changes `out` (tokens, heads, width) and `sums` (heads, tokens) to be of the anchors beyond the window, too."""
    grid = (triton.cdiv(q.shape[0], TALL), q.shape[1])
    _forward[grid](q, k, v, out, sums, *place, q.shape[0], *_strides(q, k, v), out.stride(0), out.stride(1), scale,
                   rule[0], STEP=rule[1], CAUSAL=rule[2], WIDTH=q.shape[2], TALL=TALL)  # fmt: skip


def slopes(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, dq: Tensor, place: Place, rule: Rule, scale: float
) -> tuple[Tensor, Tensor]:
    """Adds to `dq`, and gives what to add to the anchors' keys and values: (anchors, heads, width) twice, in float32."""
    dk, dv = torch.zeros(2, place[2].shape[0], *q.shape[1:], dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(q.shape[0], TALL), q.shape[1])
    _backward[grid](grad, q, k, v, out, sums, dq, dk, dv, *place, q.shape[0], *_strides(q, k, v), out.stride(0), out.stride(1),
                    dq.stride(0), dq.stride(1), scale, rule[0], STEP=rule[1], CAUSAL=rule[2], WIDTH=q.shape[2],
                    TALL=TALL)  # fmt: skip
    return dk, dv


def _strides(*three: Tensor) -> tuple[int, ...]:
    return tuple(stride for t in three for stride in t.stride()[:2])


@triton.jit
def _far(mine, here, owner, place, anchor, reach, STEP: tl.constexpr, CAUSAL: tl.constexpr):
    """(queries,): those of the anchor's sequence that do not see it through their window, nor before it comes."""
    behind = here - tl.load(place + anchor)
    near = (behind <= reach) & (behind >= -reach)
    if STEP > 1:
        near = near & (behind % STEP == 0)
    far = (mine == tl.load(owner + anchor)) & (near == 0)
    if CAUSAL:
        far = far & (behind >= 0)
    return far


@triton.jit
def _forward(q, k, v, out, sums, owner, place, anchors, first, tokens, q_row, q_head, k_row, k_head, v_row, v_head, o_row,
             o_head, scale, reach, STEP: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr,
             TALL: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    real, column = row < tokens, tl.arange(0, WIDTH)
    mine, here = tl.load(owner + row, mask=real, other=-1), tl.load(place + row, mask=real, other=0)
    at = row[:, None] * o_row + head * o_head + column[None, :]
    asked = tl.load(q + row[:, None] * q_row + head * q_head + column[None, :], mask=real[:, None], other=0.0).to(tl.float32)
    mixed = tl.load(out + at, mask=real[:, None], other=0.0).to(tl.float32)
    total = tl.load(sums + head * tokens + row, mask=real, other=0.0)
    begin = tl.load(first + tl.load(owner + tl.program_id(0).to(tl.int64) * TALL))
    end = tl.load(first + tl.max(mine, 0) + 1)
    for number in range(begin, end):
        anchor = tl.load(anchors + number)
        key = tl.load(k + anchor * k_row + head * k_head + column).to(tl.float32)
        value = tl.load(v + anchor * v_row + head * v_head + column).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        score = tl.where(_far(mine, here, owner, place, anchor, reach, STEP, CAUSAL), score, float("-inf"))
        most = tl.maximum(total, score)
        more = most + tl.log(tl.exp(total - most) + tl.exp(score - most))
        mixed = mixed * tl.exp(total - more)[:, None] + tl.exp(score - more)[:, None] * value[None, :]
        total = more
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(sums + head * tokens + row, total, mask=real)


@triton.jit
def _backward(grad, q, k, v, out, sums, dq, dk, dv, owner, place, anchors, first, tokens, q_row, q_head, k_row, k_head, v_row,
              v_head, o_row, o_head, d_row, d_head, scale, reach, STEP: tl.constexpr, CAUSAL: tl.constexpr,
              WIDTH: tl.constexpr, TALL: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    real, column = row < tokens, tl.arange(0, WIDTH)
    mine, here = tl.load(owner + row, mask=real, other=-1), tl.load(place + row, mask=real, other=0)
    at = row[:, None] * o_row + head * o_head + column[None, :]
    to = row[:, None] * d_row + head * d_head + column[None, :]
    asked = tl.load(q + row[:, None] * q_row + head * q_head + column[None, :], mask=real[:, None], other=0.0).to(tl.float32)
    down = tl.load(grad + at, mask=real[:, None], other=0.0).to(tl.float32)
    mean = tl.sum(down * tl.load(out + at, mask=real[:, None], other=0.0).to(tl.float32), 1)
    total = tl.load(sums + head * tokens + row, mask=real, other=0.0)
    turned = tl.load(dq + to, mask=real[:, None], other=0.0).to(tl.float32)
    begin = tl.load(first + tl.load(owner + tl.program_id(0).to(tl.int64) * TALL))
    end = tl.load(first + tl.max(mine, 0) + 1)
    for number in range(begin, end):
        anchor = tl.load(anchors + number)
        key = tl.load(k + anchor * k_row + head * k_head + column).to(tl.float32)
        value = tl.load(v + anchor * v_row + head * v_head + column).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        far = _far(mine, here, owner, place, anchor, reach, STEP, CAUSAL)
        weight = tl.where(far, tl.exp(score - total), 0.0)
        slope = weight * (tl.sum(down * value[None, :], 1) - mean) * scale
        turned += slope[:, None] * key[None, :]
        sum_at = (number * tl.num_programs(1) + head) * WIDTH + column
        tl.atomic_add(dk + sum_at, tl.sum(slope[:, None] * asked, 0))
        tl.atomic_add(dv + sum_at, tl.sum(weight[:, None] * down, 0))
    tl.store(dq + to, turned.to(dq.dtype.element_ty), mask=real[:, None])
