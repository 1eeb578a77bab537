"""Attention among the nearest of one bucket: tokens are read where they lie, and tiles without a meeting are left out."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTHS = (16, 32, 64, 128)  # of a head
TILE = 64  # tokens of a round's order, down and across
Two = tuple[Tensor, Tensor]


def gathered(q: Tensor, k: Tensor, v: Tensor, order: Tensor, code: Tensor, reach: int, causal: bool) -> Two:
    """As `buckets.met`."""
    return _Gathered.apply(q, k, v, order, code, reach, causal)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, order: Tensor, code: Tensor, reach: int, causal: bool) -> Two:
        q, k, v, order, code = q.contiguous(), k.contiguous(), v.contiguous(), order.int().contiguous(), code.contiguous()
        rounds, heads, tokens = order.shape
        out, mass = q.new_empty(*order.shape, q.shape[2]), torch.empty(order.shape, dtype=torch.float32, device=q.device)
        ctx.grid = (triton.cdiv(tokens, TILE), rounds * heads)
        ctx.sizes = (heads, tokens, reach)
        ctx.shape = {"ROUNDS": rounds, "WIDTH": q.shape[2], "TILE": TILE, "CAUSAL": causal, "num_warps": 4}
        _forward[ctx.grid](q, k, v, order, code, out, mass, *ctx.sizes, **ctx.shape)
        ctx.save_for_backward(q, k, v, order, code, out, mass)
        return out, mass

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        q, k, v, order, code, out, mass = ctx.saved_tensors
        grad = slopes[0].contiguous()
        lean = (slopes[1] - (grad * out).sum(-1, dtype=torch.float32)).contiguous()  # what every score of a token shares
        down = [torch.empty_like(out) for _ in range(3)]
        given = (q, k, v, order, code, grad, mass, lean)
        _backward_queries[ctx.grid](*given, down[0], *ctx.sizes, **ctx.shape)
        _backward_keys[ctx.grid](*given, *down[1:], *ctx.sizes, **ctx.shape)
        return *(each.sum(0) for each in down), None, None, None, None


@triton.jit
def _rows(x, row, real, WIDTH: tl.constexpr):
    at = row.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(x + at, mask=real[:, None], other=0.0)


@triton.jit
def _put(x, value, row, real, WIDTH: tl.constexpr):
    at = row.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(x + at, value.to(x.dtype.element_ty), mask=real[:, None])


@triton.jit
def _scores(q, k, code, query, key, asked, there, same, turn, heads, tokens, reach, ROUNDS: tl.constexpr, CAUSAL: tl.constexpr):
    """(queries, keys): -inf where two do not meet in this round, or have met in one before."""
    real = asked[:, None] & there[None, :]
    seen = real
    for number in tl.static_range(ROUNDS):
        if number <= turn:
            codes = code + number * heads * tokens
            behind = tl.load(codes + query, mask=asked, other=0)[:, None] - tl.load(codes + key, mask=there, other=0)[None, :]
            near = (behind <= reach) & (behind >= (0 if CAUSAL else -reach))
            seen = seen & (near ^ (number != turn))
    scores = tl.where(seen, tl.dot(q, tl.trans(k)).to(tl.float32), float("-inf"))
    return tl.where(same & real, -1e5, scores)


@triton.jit
def _meets(own, order, first, last, begin, end, reach):
    """Whether any of the tokens from `begin` to `end` of an order lies near any from `first` to `last`: codes grow along it."""
    nearest = tl.load(own + tl.load(order + end)) - tl.load(own + tl.load(order + first))
    furthest = tl.load(own + tl.load(order + begin)) - tl.load(own + tl.load(order + last))
    return (nearest >= -reach) & (furthest <= reach)


@triton.jit
def _forward(q, k, v, order, code, out, mass, heads, tokens, reach, ROUNDS: tl.constexpr, WIDTH: tl.constexpr,
             TILE: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    first, turn, head = tl.program_id(0) * TILE, tl.program_id(1) // heads, tl.program_id(1) % heads
    here, round_here = head.to(tl.int64) * tokens, tl.program_id(1).to(tl.int64) * tokens
    q, k, v, code = q + here * WIDTH, k + here * WIDTH, v + here * WIDTH, code + here
    order, out, mass, own = (
        order + round_here,
        out + round_here * WIDTH,
        mass + round_here,
        code + turn.to(tl.int64) * heads * tokens,
    )
    place = first + tl.arange(0, TILE)
    asked = place < tokens
    query = tl.load(order + place, mask=asked, other=0)
    x = _rows(q, query, asked, WIDTH)
    most, total = tl.full((TILE,), float("-inf"), tl.float32), tl.zeros((TILE,), tl.float32)
    sums = tl.zeros((TILE, WIDTH), tl.float32)
    last = tl.minimum(first + TILE, tokens) - 1
    begin = tl.maximum(first - reach, 0) // TILE * TILE
    for start in range(begin, last + 1 if CAUSAL else tl.minimum(last + reach + 1, tokens), TILE):
        if _meets(own, order, first, last, start, tl.minimum(start + TILE, tokens) - 1, reach):
            there = start + tl.arange(0, TILE)
            real = there < tokens
            key = tl.load(order + there, mask=real, other=0)
            same = place[:, None] == there[None, :]
            scores = _scores(x, _rows(k, key, real, WIDTH), code, query, key, asked, real, same, turn, heads, tokens, reach,
                             ROUNDS, CAUSAL)  # fmt: skip
            higher = tl.maximum(most, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            grown, shrunk = tl.exp(scores - base[:, None]), tl.exp(most - base)
            values = _rows(v, key, real, WIDTH)
            sums = sums * shrunk[:, None] + tl.dot(grown.to(values.dtype), values)
            total, most = total * shrunk + tl.sum(grown, 1), higher
    total = tl.where(asked, total, 1.0)
    _put(out, sums / total[:, None], query, asked, WIDTH)
    tl.store(mass + query, most + tl.log(total), mask=asked)


@triton.jit
def _backward_queries(q, k, v, order, code, grad, mass, lean, down, heads, tokens, reach, ROUNDS: tl.constexpr,
                      WIDTH: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    first, turn, head = tl.program_id(0) * TILE, tl.program_id(1) // heads, tl.program_id(1) % heads
    here, round_here = head.to(tl.int64) * tokens, tl.program_id(1).to(tl.int64) * tokens
    q, k, v, code = q + here * WIDTH, k + here * WIDTH, v + here * WIDTH, code + here
    order, mass, lean, own = order + round_here, mass + round_here, lean + round_here, code + turn.to(tl.int64) * heads * tokens
    grad, down = grad + round_here * WIDTH, down + round_here * WIDTH
    place = first + tl.arange(0, TILE)
    asked = place < tokens
    query = tl.load(order + place, mask=asked, other=0)
    x, slope = _rows(q, query, asked, WIDTH), _rows(grad, query, asked, WIDTH)
    sum_of, shared = tl.load(mass + query, mask=asked, other=0.0), tl.load(lean + query, mask=asked, other=0.0)
    dq = tl.zeros((TILE, WIDTH), tl.float32)
    last = tl.minimum(first + TILE, tokens) - 1
    begin = tl.maximum(first - reach, 0) // TILE * TILE
    for start in range(begin, last + 1 if CAUSAL else tl.minimum(last + reach + 1, tokens), TILE):
        if _meets(own, order, first, last, start, tl.minimum(start + TILE, tokens) - 1, reach):
            there = start + tl.arange(0, TILE)
            real = there < tokens
            key = tl.load(order + there, mask=real, other=0)
            same, keys = place[:, None] == there[None, :], _rows(k, key, real, WIDTH)
            scores = _scores(x, keys, code, query, key, asked, real, same, turn, heads, tokens, reach, ROUNDS, CAUSAL)
            weights = tl.exp(scores - sum_of[:, None])
            ds = weights * (tl.dot(slope, tl.trans(_rows(v, key, real, WIDTH))) + shared[:, None])
            dq += tl.dot(tl.where(same, 0.0, ds).to(keys.dtype), keys)
    _put(down, dq, query, asked, WIDTH)


@triton.jit
def _backward_keys(q, k, v, order, code, grad, mass, lean, of_keys, of_values, heads, tokens, reach, ROUNDS: tl.constexpr,
                   WIDTH: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    first, turn, head = tl.program_id(0) * TILE, tl.program_id(1) // heads, tl.program_id(1) % heads
    here, round_here = head.to(tl.int64) * tokens, tl.program_id(1).to(tl.int64) * tokens
    q, k, v, code = q + here * WIDTH, k + here * WIDTH, v + here * WIDTH, code + here
    order, mass, lean, own = order + round_here, mass + round_here, lean + round_here, code + turn.to(tl.int64) * heads * tokens
    grad, of_keys, of_values = grad + round_here * WIDTH, of_keys + round_here * WIDTH, of_values + round_here * WIDTH
    there = first + tl.arange(0, TILE)
    real = there < tokens
    key = tl.load(order + there, mask=real, other=0)
    keys, values = _rows(k, key, real, WIDTH), _rows(v, key, real, WIDTH)
    dk, dv = tl.zeros((TILE, WIDTH), tl.float32), tl.zeros((TILE, WIDTH), tl.float32)
    last = tl.minimum(first + TILE, tokens) - 1
    begin = first if CAUSAL else tl.maximum(first - reach, 0) // TILE * TILE
    for start in range(begin, tl.minimum(last + reach + 1, tokens), TILE):
        if _meets(own, order, first, last, start, tl.minimum(start + TILE, tokens) - 1, reach):
            place = start + tl.arange(0, TILE)
            asked = place < tokens
            query = tl.load(order + place, mask=asked, other=0)
            x, slope = _rows(q, query, asked, WIDTH), _rows(grad, query, asked, WIDTH)
            sum_of, shared = tl.load(mass + query, mask=asked, other=0.0), tl.load(lean + query, mask=asked, other=0.0)
            same = place[:, None] == there[None, :]
            scores = _scores(x, keys, code, query, key, asked, real, same, turn, heads, tokens, reach, ROUNDS, CAUSAL)
            weights = tl.exp(scores - sum_of[:, None])
            ds = weights * (tl.dot(slope, tl.trans(values)) + shared[:, None])
            dv += tl.dot(tl.trans(weights.to(slope.dtype)), slope)
            dk += tl.dot(tl.trans(tl.where(same, 0.0, ds).to(x.dtype)), x)
    _put(of_keys, dk, key, real, WIDTH)
    _put(of_values, dv, key, real, WIDTH)
