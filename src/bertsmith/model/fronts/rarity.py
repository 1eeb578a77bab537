"""Adaptive input (Baevski & Auli 2019): the rarer a word, the fewer numbers it has in its table, widened to the model's."""

from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor, nn

from ...config import Count, Variant
from ..layout import Layout
from ..rarity import Clusters
from .base import Front

Shrink = Annotated[float, Meta(ge=1, le=1e6)]


class ByRarity(Variant, frozen=True):
    """Tables of clusters of words; ids must be in order of frequency."""

    cutoffs: Annotated[tuple[Count, ...], Meta(min_length=1), "the first id of every cluster but that of frequent words"] = (
        2_000, 10_000,
    )  # fmt: skip
    shrink: Annotated[Shrink, "each cluster has so many times fewer numbers a word than the one before"] = 4.0

    table: ClassVar[int] = 0  # numbers in the encoder's table of tokens: there is none
    causal: ClassVar[bool] = True

    def build(self, width: int, vocabulary: int) -> "RarityTables":
        return RarityTables(Clusters.of(self.cutoffs, self.shrink, width, vocabulary), width)


class RarityTables(Front):
    def __init__(self, clusters: Clusters, width: int) -> None:
        super().__init__()
        self.clusters = clusters
        self.tables = nn.ModuleList(
            nn.Embedding(size, each) for size, each in zip(clusters.sizes, clusters.widths, strict=True)
        )
        self.widen = nn.ModuleList(nn.Linear(each, width, bias=False) for each in clusters.widths[1:])

    def forward(self, ids: Tensor, layout: Layout, table: nn.Embedding | None) -> Tensor:
        """Every token goes through every cluster: that costs less than a third of one matrix, and nothing has to wait."""
        owner, found = self.clusters.owner(ids), []
        for number, (words, first) in enumerate(zip(self.tables, self.clusters.borders, strict=False)):
            rows = words((ids - first).clamp(0, self.clusters.sizes[number] - 1))
            rows = self.widen[number - 1](rows) if number else rows
            found.append(torch.where((owner == number)[:, None], rows, 0))
        return torch.stack(found).sum(0)
