"""Few keys that many queries see beyond their windows, joined to what the windows gave in one pass over memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TALL = 64  # queries of a program
Place = tuple[Tensor, Tensor, Tensor, Tensor]  # owner and place of tokens; anchors among them; where each owner's begin
Three = tuple[Tensor, Tensor, Tensor]
Rule = tuple[int, int, bool]  # how far a window reaches, in tokens; its step; causal


def fits(qkv: Tensor) -> bool:
    """A program holds whole heads, whose width is a power of two."""
    width = qkv.shape[-1]
    return width & (width - 1) == 0 and 8 <= width <= 256


def joined(qkv: Tensor, out: Tensor, sums: Tensor, place: Place, rule: Rule, scale: float) -> None:
    """Changes `out` (tokens, heads, width) and `sums` (heads, tokens) to be of the anchors beyond the window, too."""
    (tokens, heads, width), (reach, step, causal) = out.shape, rule
    _forward[(triton.cdiv(tokens, TALL), heads)](
        qkv, out, sums, *place, tokens, scale, reach, STEP=step, CAUSAL=causal, WIDTH=width, TALL=TALL
    )


def slopes(grad: Tensor, qkv: Tensor, out: Tensor, sums: Tensor, down: Three, place: Place, rule: Rule, scale: float) -> Three:
    """(tokens, 3, heads, width): those in `down` (of queries, keys and values, each by itself), and to the queries' added what
    anchors do. In float32, (some, 3, heads, width): what they add up to when added up; and, as a part of that, (anchors, 2,
    heads, width): what is still to be added to the keys and values of anchors."""
    (tokens, heads, width), (reach, step, causal) = out.shape, rule
    slope, programs = torch.empty_like(qkv), triton.cdiv(tokens, TALL)
    totals = torch.zeros(programs + place[2].shape[0], 3, heads, width, dtype=torch.float32, device=qkv.device)
    _backward[(programs, heads)](
        grad, qkv, out, sums, *(t.contiguous() for t in down), slope, totals, *place, tokens, scale, reach,
        STEP=step, CAUSAL=causal, WIDTH=width, TALL=TALL,
    )  # fmt: skip
    return slope, totals, totals[programs:, 1:]


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
def _forward(qkv, out, sums, owner, place, anchors, first, tokens, scale, reach, STEP: tl.constexpr, CAUSAL: tl.constexpr,
             WIDTH: tl.constexpr, TALL: tl.constexpr):  # fmt: skip
    head, side = tl.program_id(1), tl.num_programs(1) * WIDTH
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    real, column = row < tokens, head * WIDTH + tl.arange(0, WIDTH)
    mine, here = tl.load(owner + row, mask=real, other=-1), tl.load(place + row, mask=real, other=0)
    at = row[:, None] * side + column[None, :]
    asked = tl.load(qkv + row[:, None] * (3 * side) + column[None, :], mask=real[:, None], other=0.0).to(tl.float32)
    mixed = tl.load(out + at, mask=real[:, None], other=0.0).to(tl.float32)
    total = tl.load(sums + head * tokens + row, mask=real, other=0.0)
    begin = tl.load(first + tl.load(owner + tl.program_id(0).to(tl.int64) * TALL))
    end = tl.load(first + tl.max(mine, 0) + 1)
    for number in range(begin, end):
        anchor = tl.load(anchors + number)
        key = tl.load(qkv + (3 * anchor + 1) * side + column).to(tl.float32)
        value = tl.load(qkv + (3 * anchor + 2) * side + column).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        score = tl.where(_far(mine, here, owner, place, anchor, reach, STEP, CAUSAL), score, float("-inf"))
        most = tl.maximum(total, score)
        more = most + tl.log(tl.exp(total - most) + tl.exp(score - most))
        mixed = mixed * tl.exp(total - more)[:, None] + tl.exp(score - more)[:, None] * value[None, :]
        total = more
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(sums + head * tokens + row, total, mask=real)


@triton.jit
def _backward(grad, qkv, out, sums, dq, dk, dv, slope, totals, owner, place, anchors, first, tokens, scale, reach,
              STEP: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr):  # fmt: skip
    head, side = tl.program_id(1), tl.num_programs(1) * WIDTH
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    real, column = row < tokens, head * WIDTH + tl.arange(0, WIDTH)
    mine, here = tl.load(owner + row, mask=real, other=-1), tl.load(place + row, mask=real, other=0)
    at, to = row[:, None] * side + column[None, :], row[:, None] * (3 * side) + column[None, :]
    keys = tl.load(dk + at, mask=real[:, None], other=0.0)
    values = tl.load(dv + at, mask=real[:, None], other=0.0)
    asked = tl.load(qkv + to, mask=real[:, None], other=0.0).to(tl.float32)
    down = tl.load(grad + at, mask=real[:, None], other=0.0).to(tl.float32)
    mean = tl.sum(down * tl.load(out + at, mask=real[:, None], other=0.0).to(tl.float32), 1)
    total = tl.load(sums + head * tokens + row, mask=real, other=0.0)
    turned = tl.load(dq + at, mask=real[:, None], other=0.0).to(tl.float32)
    begin = tl.load(first + tl.load(owner + tl.program_id(0).to(tl.int64) * TALL))
    end = tl.load(first + tl.max(mine, 0) + 1)
    for number in range(begin, end):
        anchor = tl.load(anchors + number)
        key = tl.load(qkv + (3 * anchor + 1) * side + column).to(tl.float32)
        value = tl.load(qkv + (3 * anchor + 2) * side + column).to(tl.float32)
        score = tl.sum(asked * key[None, :], 1) * scale
        far = _far(mine, here, owner, place, anchor, reach, STEP, CAUSAL)
        weight = tl.where(far, tl.exp(score - total), 0.0)
        turn = weight * (tl.sum(down * value[None, :], 1) - mean) * scale
        turned += turn[:, None] * key[None, :]
        more = totals + (tl.num_programs(0) + number) * (3 * side) + column
        tl.atomic_add(more + side, tl.sum(turn[:, None] * asked, 0))
        tl.atomic_add(more + 2 * side, tl.sum(weight[:, None] * down, 0))
    tl.store(slope + to, turned.to(slope.dtype.element_ty), mask=real[:, None])
    tl.store(slope + to + side, keys, mask=real[:, None])
    tl.store(slope + to + 2 * side, values, mask=real[:, None])
    sums_at = totals + tl.program_id(0) * (3 * side) + column
    tl.store(sums_at, tl.sum(turned, 0))
    tl.store(sums_at + side, tl.sum(keys.to(tl.float32), 0))
    tl.store(sums_at + 2 * side, tl.sum(values.to(tl.float32), 0))
