"""Angular hashes: vectors that point the same way fall into one bucket, more often than not."""

from math import prod

import torch
from torch import Tensor, nn

from ..errors import BadInput


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
