"""What the distance between two tokens adds to the score between them: ALiBi's slopes, or T5's learned buckets."""

import math
from abc import ABC, abstractmethod
from typing import Annotated

import torch
from torch import Tensor, nn

from ..config import Count, Variant
from ..errors import BadInput


class Alibi(Variant, frozen=True):
    """A penalty that grows with the distance, at a pace of each head's own (Press et al. 2022)."""

    def build(self, heads: int, causal: bool) -> "Apart":
        return Slopes(heads)


class Relative(Variant, frozen=True):
    """A learned number for each head and each bucket of distances, as T5 (Raffel et al. 2020)."""

    buckets: Annotated[
        Count, "half of them for one distance each, the rest for ever more; unless causal, half for each side"
    ] = 32
    furthest: Annotated[Count, "the last bucket has this distance and all beyond"] = 128
    shared: Annotated[bool, "all layers have those of the first, as T5; else each has its own"] = True

    def build(self, heads: int, causal: bool) -> "Apart":
        return Buckets(self, heads, causal)


DistanceConfig = Alibi | Relative


class Apart(nn.Module, ABC):
    @abstractmethod
    def forward(self, ahead: Tensor) -> Tensor:
        """(..): how far keys lie ahead of queries -> (heads, ..): what that adds to their scores."""

    def row(self, longest: int, device: torch.device) -> Tensor:
        """(heads, 2 x longest - 1): of every distance in a text of so many tokens, from the furthest behind."""
        return self(torch.arange(1 - longest, longest, device=device))


class Slopes(Apart):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.paces = slopes(heads)  # no part of a checkpoint

    def forward(self, ahead: Tensor) -> Tensor:
        paces = torch.tensor(self.paces, device=ahead.device).view(-1, *[1] * ahead.ndim)
        return -paces * ahead.abs()


class Buckets(Apart):
    def __init__(self, config: Relative, heads: int, causal: bool) -> None:
        super().__init__()
        sides, self.causal, self.furthest = 1 if causal else 2, causal, config.furthest
        self.exact = config.buckets // sides // 2
        if config.buckets % (2 * sides) or config.furthest <= self.exact:
            raise BadInput(f"{config.buckets} buckets of distances up to {config.furthest}: let model.mixer.distance.buckets "
                           f"be a multiple of {2 * sides}, and furthest more than {max(1, self.exact)}")  # fmt: skip
        self.table = nn.Embedding(config.buckets, heads)

    def forward(self, ahead: Tensor) -> Tensor:
        return self.table(self.bucket(ahead)).movedim(-1, 0)

    def bucket(self, ahead: Tensor) -> Tensor:
        """Small distances have one each; larger ones share, in equal steps of their logarithm."""
        distance = (-ahead).clamp(min=0) if self.causal else ahead.abs()
        steps = (distance.clamp(min=1) / self.exact).log() / math.log(self.furthest / self.exact) * self.exact
        far = (self.exact + steps.long()).clamp(max=2 * self.exact - 1)
        found = torch.where(distance < self.exact, distance, far)
        return found if self.causal else found + 2 * self.exact * (ahead > 0)


def slopes(heads: int) -> list[float]:
    """1/2, 1/4 .. 1/256 for 8 heads, in such steps for any power of two; others take every second one of twice as many."""
    whole = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-8 * number / whole) for number in range(1, whole + 1)]
    return found + [2.0 ** (-4 * number / whole) for number in range(1, 2 * (heads - whole), 2)]
