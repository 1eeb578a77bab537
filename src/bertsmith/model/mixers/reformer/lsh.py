"""Locality-sensitive hashing by random rotations, and attention within the buckets (Kitaev et al. 2020, section 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import UserError
from ... import kernels
from ..block_band import BlockBand

SELF_MASK_VALUE = -1e5  # score of a token with itself: it attends to itself only if it has no neighbour
MAX_SCORES = 1 << 21  # scores computed at a time on a CPU, so that they stay in cache
MAX_ROTATIONS = 1 << 28  # numbers in the random matrices of a layer


class LshHash(nn.Module):
    """Angular LSH: h(x) = argmax([xR; -xR]) (Andoni et al. 2015), for each head and hash round with a random R of its own.

    If the number of buckets is given by its factors, each factor is hashed separately: as many buckets with far fewer products.
    In training new R are drawn at every call, from torch's generator; in evaluation they are fixed by the seed.
    """

    rotations: Tensor  # R: (heads, head_dim, num_hashes, sum of the factors / 2)

    def __init__(self, num_heads: int, head_dim: int, num_hashes: int, bucket_factors: tuple[int, ...], seed: int) -> None:
        super().__init__()
        if odd_factors := [factor for factor in bucket_factors if factor % 2]:
            raise UserError(
                f"model.mixer.num_buckets={odd_factors[0]} must be even: a vector and its negative have different buckets"
            )
        self.bucket_factors, self.num_buckets = bucket_factors, prod(bucket_factors)
        if (size := num_heads * head_dim * num_hashes * sum(bucket_factors) // 2) > MAX_ROTATIONS:
            raise UserError(f"model.mixer.num_hashes and num_buckets imply {size:,} numbers of random rotations; lower them")
        generator = torch.Generator(device="cpu").manual_seed(seed)
        rotations = torch.randn(num_heads, head_dim, num_hashes, sum(bucket_factors) // 2, generator=generator, device="cpu")
        self.register_buffer("rotations", rotations, persistent=False)  # generated from the seed, not saved

    def forward(self, x: Tensor) -> Tensor:
        """(heads, tokens, head_dim) -> (num_hashes, heads, tokens): the bucket of each token."""
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        with torch.autocast(x.device.type, enabled=False):  # half precision makes ties
            rotated = torch.einsum("htd,hdrb->rhtb", x.detach().float(), rotations.float())
        buckets, stride = torch.zeros_like(rotated[..., 0], dtype=torch.long), 1
        for factor, projection in zip(
            self.bucket_factors, rotated.split([factor // 2 for factor in self.bucket_factors], -1), strict=True
        ):
            buckets = buckets + stride * torch.cat([projection, -projection], -1).argmax(-1)
            stride *= factor
        return buckets


def lsh_attention(
    q: Tensor, k: Tensor, v: Tensor, sorted_idx: Tensor, bucket_rank: Tensor, half_window: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention within buckets: q, k, v (heads, tokens, head_dim) -> (num_hashes, heads, tokens, head_dim), and the lse of the
    scores of each round, (num_hashes, heads, tokens).

    `sorted_idx` sorts the tokens of each round and head by bucket; two tokens are neighbours in a round if their `bucket_rank`
    differ by at most `half_window`. A key that is a neighbour in several rounds counts in the first one only. The score of a
    token with itself is SELF_MASK_VALUE.
    """
    if kernels.supports(q):
        from ...kernels.lsh_attention import HEAD_DIMS, fused_lsh_attention

        if q.shape[-1] in HEAD_DIMS:
            return fused_lsh_attention(q, k, v, sorted_idx, bucket_rank, half_window, causal)
    return _LshAttention.apply(q, k, v, sorted_idx, bucket_rank, half_window, causal)


def unit_norm(x: Tensor) -> Tensor:
    """x / ||x|| over the last dimension, computed in float32."""
    dim = x.shape[-1]
    x_float = x.float()
    return (x_float * (x_float.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * dim**-0.5).to(x.dtype)


def gather_tokens(x: Tensor, indices: Tensor) -> Tensor:
    """Permutes (.., heads, tokens, dim) by `indices`, (num_hashes, heads, tokens) -> (num_hashes, heads, tokens, dim)"""
    x = x.expand(indices.shape[0], *x.shape[-3:])
    return x.gather(2, indices[..., None].expand(*indices.shape, x.shape[-1]))


def invert_permutation(permutation: Tensor) -> Tensor:
    """Inverse of a permutation along the last dimension."""
    return torch.empty_like(permutation).scatter_(
        -1, permutation, torch.arange(permutation.shape[-1], device=permutation.device).expand_as(permutation)
    )


class _LshAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sorted_idx: Tensor, bucket_rank: Tensor, half_window: int, causal: bool
    ) -> tuple[Tensor, Tensor]:
        rounds = [
            _HashRound(hash_round, sorted_idx, bucket_rank, half_window, causal).forward(q, k, v)
            for hash_round in range(sorted_idx.shape[0])
        ]
        out, lse = torch.stack([round_out for round_out, _ in rounds]), torch.stack([round_lse for _, round_lse in rounds])
        ctx.save_for_backward(q, k, v, sorted_idx, bucket_rank, out, lse)
        ctx.half_window, ctx.causal = half_window, causal
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, k, v, sorted_idx, bucket_rank, out, lse = ctx.saved_tensors
        total = [torch.zeros_like(x) for x in (q, k, v)]
        for hash_round in range(sorted_idx.shape[0]):
            attention = _HashRound(hash_round, sorted_idx, bucket_rank, ctx.half_window, ctx.causal)
            round_grads = attention.backward(
                q, k, v, out[hash_round], lse[hash_round], grads[0][hash_round], grads[1][hash_round]
            )
            total = [grad + round_grad for grad, round_grad in zip(total, round_grads, strict=True)]
        return *total, None, None, None, None


@dataclass(frozen=True)
class _HashRound:
    """One hash round: tokens in its order, in blocks that attend to themselves and their neighbours."""

    hash_round: int
    sorted_idx: Tensor  # (num_hashes, heads, tokens)
    bucket_rank: Tensor  # (num_hashes, heads, tokens)
    half_window: int
    causal: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        band = self._band
        outs: list[Tensor] = []
        lses: list[Tensor] = []
        for queries, keys, values, *ranks in self._split_blocks(
            band.to_query_blocks(self._sort(q)),
            band.to_key_blocks(self._sort(k)),
            band.to_key_blocks(self._sort(v)),
            *self._rank_blocks(),
        ):
            scores = self._scores(queries, keys, *ranks)
            lse = scores.logsumexp(-1, keepdim=True)
            outs.append(scores.sub_(lse).exp_().to(v.dtype) @ values)
            lses.append(lse)
        return self._unsort(band.from_query_blocks(torch.cat(outs, 1))), self._unsort(
            band.from_query_blocks(torch.cat(lses, 1))
        )[..., 0]

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v from this round."""
        band = self._band
        dq: list[Tensor] = []
        shape = (q.shape[0], band.num_blocks + -(-band.keys_per_block // band.block_size), band.block_size, q.shape[2])
        dk, dv = q.new_zeros(shape), v.new_zeros(shape)
        neg_delta = _to_float32(grad_lse - (grad_out * out).sum(-1))[..., None]  # the same for all scores of a query
        first_block = 0
        for queries, keys, values, grad, block_lse, block_delta, *ranks in self._split_blocks(
            *(
                band.to_query_blocks(self._sort(q)),
                band.to_key_blocks(self._sort(k)),
                band.to_key_blocks(self._sort(v)),
                band.to_query_blocks(self._sort(grad_out)),
            ),
            *(
                band.to_query_blocks(self._sort(lse[..., None])),
                band.to_query_blocks(self._sort(neg_delta)),
                *self._rank_blocks(),
            ),
        ):
            probs = self._scores(queries, keys, *ranks).sub_(block_lse).exp_()
            grad_scores = _to_float32(grad @ values.mT).add_(block_delta).mul_(probs)
            # The score of a token with itself is a constant.
            grad_scores = grad_scores.masked_fill_(band.relative_positions(q.device) == 0, 0.0).to(q.dtype)
            dq.append(grad_scores @ keys)
            band.add_key_blocks(dk, grad_scores.mT @ queries, first_block)
            band.add_key_blocks(dv, probs.to(v.dtype).mT @ grad, first_block)
            first_block += queries.shape[1]
        kv_grads = (total.flatten(1, 2)[:, band.half_window :][:, : band.num_tokens] for total in (dk, dv))
        return self._unsort(band.from_query_blocks(torch.cat(dq, 1))), *map(self._unsort, kv_grads)  # type: ignore[return-value]

    def _scores(self, queries: Tensor, keys: Tensor, query_ranks: Tensor, key_ranks: Tensor) -> Tensor:
        """(heads, num_blocks, block_size, keys_per_block) in float32; -inf unless neighbours in this round first."""
        scores, masked_out = (
            _to_float32(queries @ keys.mT),
            ~self._is_neighbor(query_ranks[..., self.hash_round], key_ranks[..., self.hash_round]),
        )
        for previous_round in range(self.hash_round):
            masked_out = masked_out.logical_or_(
                self._is_neighbor(query_ranks[..., previous_round], key_ranks[..., previous_round])
            )
        return scores.masked_fill_(masked_out, float("-inf")).masked_fill_(
            self._band.relative_positions(scores.device) == 0, SELF_MASK_VALUE
        )

    def _is_neighbor(self, query_ranks: Tensor, key_ranks: Tensor) -> Tensor:
        distance = query_ranks[..., None] - key_ranks[..., None, :]
        return (distance >= 0) & (distance <= self.half_window) if self.causal else distance.abs_() <= self.half_window

    def _rank_blocks(self) -> tuple[Tensor, Tensor]:
        """Bucket ranks of the queries and keys of each block, in all rounds; padding is in no bucket."""
        ranks, pad_rank = self._sort(self.bucket_rank.permute(1, 2, 0)), -2 * (self.half_window + 1)
        return self._band.to_query_blocks(ranks, pad_rank), self._band.to_key_blocks(ranks, pad_rank)

    def _split_blocks(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Chunks of blocks with at most MAX_SCORES scores; one chunk on a GPU or in a compiled graph."""
        band, num_heads = self._band, self.sorted_idx.shape[1]
        if torch.compiler.is_compiling() or self.sorted_idx.is_cuda:
            return iter([tensors])
        size = max(1, MAX_SCORES // (num_heads * band.block_size * band.keys_per_block))
        return zip(*(t.split(size, 1) for t in tensors), strict=True)

    @property
    def _band(self) -> BlockBand:
        return BlockBand(self.sorted_idx.shape[-1], self.half_window, self.causal)

    def _sort(self, x: Tensor) -> Tensor:
        """(heads, tokens, dim) in the order of the round."""
        return x.gather(1, self.sorted_idx[self.hash_round][..., None].expand(-1, -1, x.shape[2]))

    def _unsort(self, x: Tensor) -> Tensor:
        """Inverse of `_sort`."""
        return torch.empty_like(x).scatter_(1, self.sorted_idx[self.hash_round][..., None].expand_as(x), x)


def _to_float32(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
