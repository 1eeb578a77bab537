"""Angular hashes: vectors that point the same way fall into one bucket, more often than not."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import BadInput
from ... import kernels
from ..block_band import Band


class Hashes(nn.Module):
    """h(x) = argmax([xR; -xR]) (Andoni et al. 2015), for every head in several rounds, each with an R of its own.

    Several factors of the number of buckets are hashed one by one: as many buckets by far fewer products. Training draws
    new R at every call, from torch's generator; where nothing is learnt they are those of the seed, always the same.
    """

    turns: Tensor  # (heads, width, rounds, sum of the factors / 2)

    def __init__(self, heads: int, width: int, rounds: int, buckets: tuple[int, ...], seed: int) -> None:
        super().__init__()
        if odd := [factor for factor in buckets if factor % 2]:
            raise BadInput(f"a vector and its opposite fall into two buckets: model.mixer.buckets={odd[0]} is not even")
        self.factors, self.buckets = buckets, prod(buckets)
        stream = torch.Generator(device="cpu").manual_seed(seed)
        turns = torch.randn(heads, width, rounds, sum(buckets) // 2, generator=stream, device="cpu")
        self.register_buffer("turns", turns, persistent=False)  # made again of the seed wherever the model goes

    def forward(self, x: Tensor) -> Tensor:
        """(heads, tokens, width) to (rounds, heads, tokens): the bucket of each."""
        turns = torch.randn_like(self.turns) if self.training else self.turns
        with torch.autocast(x.device.type, enabled=False):  # halves of numbers make ties
            turned = torch.einsum("htd,hdrb->rhtb", x.detach().float(), turns.float())
        bucket, step = torch.zeros_like(turned[..., 0], dtype=torch.long), 1
        for factor, part in zip(self.factors, turned.split([factor // 2 for factor in self.factors], -1), strict=True):
            bucket = bucket + step * torch.cat([part, -part], -1).argmax(-1)
            step *= factor
        return bucket


def unit(x: Tensor) -> Tensor:
    """The same direction, of length one."""
    width = x.shape[-1]
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * width**-0.5).to(x.dtype)


def taken(x: Tensor, order: Tensor) -> Tensor:
    """(.., heads, tokens, width) in the order of each round and head: (rounds, heads, tokens, width)"""
    x = x.expand(order.shape[0], *x.shape[-3:])
    return x.gather(2, order[..., None].expand(*order.shape, x.shape[-1]))


def ranks(order: Tensor) -> Tensor:
    """Where each token came to stand: the way back from an order."""
    return torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))


LONELY = -1e5  # the score of a token with itself: enough if it is alone, nothing beside any other
MOST = 1 << 21  # scores at a time on a CPU: what a core's cache still holds a good part of


def met(q: Tensor, k: Tensor, v: Tensor, order: Tensor, code: Tensor, reach: int, causal: bool) -> tuple[Tensor, Tensor]:
    """(heads, tokens, width) thrice to (rounds, heads, tokens, width), and the logarithm of the mass of each, without width.

    `order` sorts the tokens of each round and head by bucket; two meet in a round if their `code` of it differ by no more
    than the reach. A key that is met in several rounds counts in the first. `LONELY` is a token's score of itself.
    """
    if kernels.serves(q):
        from ...kernels.lsh_attention import WIDTHS, gathered

        if q.shape[-1] in WIDTHS:
            return gathered(q, k, v, order, code, reach, causal)
    return _Met.apply(q, k, v, order, code, reach, causal)


class _Met(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, order: Tensor, code: Tensor, reach: int, causal: bool
    ) -> tuple[Tensor, Tensor]:
        rounds = [_Round(turn, order, code, reach, causal).forward(q, k, v) for turn in range(order.shape[0])]
        out, sums = torch.stack([mixed for mixed, _ in rounds]), torch.stack([mass for _, mass in rounds])
        ctx.save_for_backward(q, k, v, order, code, out, sums)
        ctx.reach, ctx.causal = reach, causal
        return out, sums

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        q, k, v, order, code, out, sums = ctx.saved_tensors
        total = [torch.zeros_like(x) for x in (q, k, v)]
        for turn in range(order.shape[0]):
            one = _Round(turn, order, code, ctx.reach, ctx.causal)
            found = one.backward(q, k, v, out[turn], sums[turn], slopes[0][turn], slopes[1][turn])
            total = [held + more for held, more in zip(total, found, strict=True)]
        return *total, None, None, None, None


@dataclass(frozen=True)
class _Round:
    """One round: tokens in its order, cut in blocks that meet themselves and their neighbours."""

    turn: int
    order: Tensor  # (rounds, heads, tokens)
    code: Tensor  # (rounds, heads, tokens)
    reach: int
    causal: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        band = self._band
        outs: list[Tensor] = []
        masses: list[Tensor] = []
        for queries, keys, values, *codes in self._pieces(
            band.queries(self._in(q)), band.keys(self._in(k)), band.keys(self._in(v)), *self._codes()
        ):
            scores = self._scores(queries, keys, *codes)
            mass = scores.logsumexp(-1, keepdim=True)
            outs.append(scores.sub_(mass).exp_().to(v.dtype) @ values)
            masses.append(mass)
        return self._out(band.flat(torch.cat(outs, 1))), self._out(band.flat(torch.cat(masses, 1)))[..., 0]

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mass: Tensor, slope: Tensor, of_mass: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values, of this round alone."""
        band = self._band
        dq: list[Tensor] = []
        room = (q.shape[0], band.blocks + -(-band.sight // band.block), band.block, q.shape[2])
        dk, dv = q.new_zeros(room), v.new_zeros(room)
        lean = _wide(of_mass - (slope * out).sum(-1))[..., None]  # what every score of a token shares
        first = 0
        for queries, keys, values, grad, sums, leans, *codes in self._pieces(
            *(band.queries(self._in(q)), band.keys(self._in(k)), band.keys(self._in(v)), band.queries(self._in(slope))),
            *(band.queries(self._in(mass[..., None])), band.queries(self._in(lean)), *self._codes()),
        ):
            weights = self._scores(queries, keys, *codes).sub_(sums).exp_()
            down = _wide(grad @ values.mT).add_(leans).mul_(weights)
            down = down.masked_fill_(band.ahead(q.device) == 0, 0.0).to(q.dtype)  # that score is what it is
            dq.append(down @ keys)
            band.add(dk, down.mT @ queries, first)
            band.add(dv, weights.to(v.dtype).mT @ grad, first)
            first += queries.shape[1]
        back = (whole.flatten(1, 2)[:, band.reach :][:, : band.tokens] for whole in (dk, dv))
        return self._out(band.flat(torch.cat(dq, 1))), *map(self._out, back)  # type: ignore[return-value]

    def _scores(self, queries: Tensor, keys: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
        """(heads, blocks, block, sight) in float32; -inf where two do not meet, or met before."""
        scores, hidden = _wide(queries @ keys.mT), ~self._near(mine[..., self.turn], theirs[..., self.turn])
        for turn in range(self.turn):
            hidden = hidden.logical_or_(self._near(mine[..., turn], theirs[..., turn]))
        return scores.masked_fill_(hidden, float("-inf")).masked_fill_(self._band.ahead(scores.device) == 0, LONELY)

    def _near(self, mine: Tensor, theirs: Tensor) -> Tensor:
        behind = mine[..., None] - theirs[..., None, :]
        return (behind >= 0) & (behind <= self.reach) if self.causal else behind.abs_() <= self.reach

    def _codes(self) -> tuple[Tensor, Tensor]:
        """Of queries and of keys, in all rounds; padding is in no bucket."""
        codes, apart = self._in(self.code.permute(1, 2, 0)), -2 * (self.reach + 1)
        return self._band.queries(codes, apart), self._band.keys(codes, apart)

    def _pieces(self, *parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """So many blocks at a time as give not too many scores; a graph takes all at once."""
        band, heads = self._band, self.order.shape[1]
        if torch.compiler.is_compiling() or self.order.is_cuda:
            return iter([parts])
        size = max(1, MOST // (heads * band.block * band.sight))
        return zip(*(part.split(size, 1) for part in parts), strict=True)

    @property
    def _band(self) -> Band:
        return Band(self.order.shape[-1], self.reach, self.causal)

    def _in(self, x: Tensor) -> Tensor:
        """(heads, tokens, width) in the order of the round."""
        return x.gather(1, self.order[self.turn][..., None].expand(-1, -1, x.shape[2]))

    def _out(self, x: Tensor) -> Tensor:
        """And back."""
        return torch.empty_like(x).scatter_(1, self.order[self.turn][..., None].expand_as(x), x)


def _wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
