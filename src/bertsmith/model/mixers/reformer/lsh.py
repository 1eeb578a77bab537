"""Angular hashes: vectors that point the same way fall into one bucket, more often than not."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import UserError
from ... import kernels
from ..block_band import BlockBand


class LshHash(nn.Module):
    """h(x) = argmax([xR; -xR]) (Andoni et al. 2015), for every head in several rounds, each with an R of its own.

    Several factors of the number of buckets are hashed one by one: as many buckets by far fewer products. Training draws
    new R at every call, from torch's generator; where nothing is learnt they are those of the seed, always the same.
    """

    turns: Tensor  # (heads, width, rounds, sum of the factors / 2)

    def __init__(self, num_heads: int, head_dim: int, num_hashes: int, bucket_factors: tuple[int, ...], seed: int) -> None:
        super().__init__()
        if odd := [factor for factor in bucket_factors if factor % 2]:
            raise UserError(f"a vector and its opposite fall into two buckets: model.mixer.buckets={odd[0]} is not even")
        self.bucket_factors, self.num_buckets = bucket_factors, prod(bucket_factors)
        stream = torch.Generator(device="cpu").manual_seed(seed)
        turns = torch.randn(num_heads, head_dim, num_hashes, sum(bucket_factors) // 2, generator=stream, device="cpu")
        self.register_buffer("turns", turns, persistent=False)  # made again of the seed wherever the model goes

    def forward(self, x: Tensor) -> Tensor:
        """(heads, tokens, width) to (rounds, heads, tokens): the bucket of each."""
        turns = torch.randn_like(self.turns) if self.training else self.turns
        with torch.autocast(x.device.type, enabled=False):  # halves of numbers make ties
            turned = torch.einsum("htd,hdrb->rhtb", x.detach().float(), turns.float())
        bucket, step = torch.zeros_like(turned[..., 0], dtype=torch.long), 1
        for factor, part in zip(
            self.bucket_factors, turned.split([factor // 2 for factor in self.bucket_factors], -1), strict=True
        ):
            bucket = bucket + step * torch.cat([part, -part], -1).argmax(-1)
            step *= factor
        return bucket


def unit_norm(x: Tensor) -> Tensor:
    """The same direction, of length one."""
    width = x.shape[-1]
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * width**-0.5).to(x.dtype)


def gather_tokens(x: Tensor, indices: Tensor) -> Tensor:
    """(.., heads, tokens, width) in the order of each round and head: (rounds, heads, tokens, width)"""
    x = x.expand(indices.shape[0], *x.shape[-3:])
    return x.gather(2, indices[..., None].expand(*indices.shape, x.shape[-1]))


def invert_permutation(permutation: Tensor) -> Tensor:
    """Where each token came to stand: the way back from an order."""
    return torch.empty_like(permutation).scatter_(
        -1, permutation, torch.arange(permutation.shape[-1], device=permutation.device).expand_as(permutation)
    )


SELF_MASK_VALUE = -1e5  # the score of a token with itself: enough if it is alone, nothing beside any other
MAX_SCORES = 1 << 21  # scores at a time on a CPU: what a core's cache still holds a good part of


def lsh_attention(
    q: Tensor, k: Tensor, v: Tensor, sorted_idx: Tensor, bucket_rank: Tensor, half_window: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """(heads, tokens, width) thrice to (rounds, heads, tokens, width), and the logarithm of the mass of each, without width.

    `order` sorts the tokens of each round and head by bucket; two meet in a round if their `code` of it differ by no more
    than the reach. A key that is met in several rounds counts in the first. `LONELY` is a token's score of itself.
    """
    if kernels.supports(q):
        from ...kernels.lsh_attention import HEAD_DIMS, fused_lsh_attention

        if q.shape[-1] in HEAD_DIMS:
            return fused_lsh_attention(q, k, v, sorted_idx, bucket_rank, half_window, causal)
    return _LshAttention.apply(q, k, v, sorted_idx, bucket_rank, half_window, causal)


class _LshAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sorted_idx: Tensor, bucket_rank: Tensor, half_window: int, causal: bool
    ) -> tuple[Tensor, Tensor]:
        rounds = [
            _HashRound(turn, sorted_idx, bucket_rank, half_window, causal).forward(q, k, v)
            for turn in range(sorted_idx.shape[0])
        ]
        out, sums = torch.stack([mixed for mixed, _ in rounds]), torch.stack([mass for _, mass in rounds])
        ctx.save_for_backward(q, k, v, sorted_idx, bucket_rank, out, sums)
        ctx.reach, ctx.causal = half_window, causal
        return out, sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, k, v, order, code, out, sums = ctx.saved_tensors
        total = [torch.zeros_like(x) for x in (q, k, v)]
        for turn in range(order.shape[0]):
            one = _HashRound(turn, order, code, ctx.reach, ctx.causal)
            found = one.backward(q, k, v, out[turn], sums[turn], grads[0][turn], grads[1][turn])
            total = [held + more for held, more in zip(total, found, strict=True)]
        return *total, None, None, None, None


@dataclass(frozen=True)
class _HashRound:
    """One round: tokens in its order, cut in blocks that meet themselves and their neighbours."""

    hash_round: int
    sorted_idx: Tensor  # (rounds, heads, tokens)
    bucket_rank: Tensor  # (rounds, heads, tokens)
    half_window: int
    causal: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        band = self._band
        outs: list[Tensor] = []
        masses: list[Tensor] = []
        for queries, keys, values, *codes in self._split_blocks(
            band.to_query_blocks(self._sort(q)),
            band.to_key_blocks(self._sort(k)),
            band.to_key_blocks(self._sort(v)),
            *self._rank_blocks(),
        ):
            scores = self._scores(queries, keys, *codes)
            mass = scores.logsumexp(-1, keepdim=True)
            outs.append(scores.sub_(mass).exp_().to(v.dtype) @ values)
            masses.append(mass)
        return self._unsort(band.from_query_blocks(torch.cat(outs, 1))), self._unsort(
            band.from_query_blocks(torch.cat(masses, 1))
        )[..., 0]

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values, of this round alone."""
        band = self._band
        dq: list[Tensor] = []
        room = (q.shape[0], band.num_blocks + -(-band.keys_per_block // band.block_size), band.block_size, q.shape[2])
        dk, dv = q.new_zeros(room), v.new_zeros(room)
        lean = _to_float32(grad_lse - (grad_out * out).sum(-1))[..., None]  # what every score of a token shares
        first = 0
        for queries, keys, values, grad, sums, leans, *codes in self._split_blocks(
            *(
                band.to_query_blocks(self._sort(q)),
                band.to_key_blocks(self._sort(k)),
                band.to_key_blocks(self._sort(v)),
                band.to_query_blocks(self._sort(grad_out)),
            ),
            *(band.to_query_blocks(self._sort(lse[..., None])), band.to_query_blocks(self._sort(lean)), *self._rank_blocks()),
        ):
            weights = self._scores(queries, keys, *codes).sub_(sums).exp_()
            down = _to_float32(grad @ values.mT).add_(leans).mul_(weights)
            down = down.masked_fill_(band.relative_positions(q.device) == 0, 0.0).to(q.dtype)  # that score is what it is
            dq.append(down @ keys)
            band.add_key_blocks(dk, down.mT @ queries, first)
            band.add_key_blocks(dv, weights.to(v.dtype).mT @ grad, first)
            first += queries.shape[1]
        back = (whole.flatten(1, 2)[:, band.half_window :][:, : band.num_tokens] for whole in (dk, dv))
        return self._unsort(band.from_query_blocks(torch.cat(dq, 1))), *map(self._unsort, back)  # type: ignore[return-value]

    def _scores(self, queries: Tensor, keys: Tensor, query_ranks: Tensor, key_ranks: Tensor) -> Tensor:
        """(heads, blocks, block, sight) in float32; -inf where two do not meet, or met before."""
        scores, hidden = (
            _to_float32(queries @ keys.mT),
            ~self._is_neighbor(query_ranks[..., self.hash_round], key_ranks[..., self.hash_round]),
        )
        for turn in range(self.hash_round):
            hidden = hidden.logical_or_(self._is_neighbor(query_ranks[..., turn], key_ranks[..., turn]))
        return scores.masked_fill_(hidden, float("-inf")).masked_fill_(
            self._band.relative_positions(scores.device) == 0, SELF_MASK_VALUE
        )

    def _is_neighbor(self, query_ranks: Tensor, key_ranks: Tensor) -> Tensor:
        behind = query_ranks[..., None] - key_ranks[..., None, :]
        return (behind >= 0) & (behind <= self.half_window) if self.causal else behind.abs_() <= self.half_window

    def _rank_blocks(self) -> tuple[Tensor, Tensor]:
        """Of queries and of keys, in all rounds; padding is in no bucket."""
        codes, apart = self._sort(self.bucket_rank.permute(1, 2, 0)), -2 * (self.half_window + 1)
        return self._band.to_query_blocks(codes, apart), self._band.to_key_blocks(codes, apart)

    def _split_blocks(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """So many blocks at a time as give not too many scores; a graph takes all at once."""
        band, heads = self._band, self.sorted_idx.shape[1]
        if torch.compiler.is_compiling() or self.sorted_idx.is_cuda:
            return iter([tensors])
        size = max(1, MAX_SCORES // (heads * band.block_size * band.keys_per_block))
        return zip(*(part.split(size, 1) for part in tensors), strict=True)

    @property
    def _band(self) -> BlockBand:
        return BlockBand(self.sorted_idx.shape[-1], self.half_window, self.causal)

    def _sort(self, x: Tensor) -> Tensor:
        """(heads, tokens, width) in the order of the round."""
        return x.gather(1, self.sorted_idx[self.hash_round][..., None].expand(-1, -1, x.shape[2]))

    def _unsort(self, x: Tensor) -> Tensor:
        """And back."""
        return torch.empty_like(x).scatter_(1, self.sorted_idx[self.hash_round][..., None].expand_as(x), x)


def _to_float32(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
