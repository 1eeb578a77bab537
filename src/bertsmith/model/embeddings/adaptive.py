"""A vocabulary in clusters, frequent words first: the rarer the words of one, the fewer numbers each is made of."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...config import Count, Variant
from ...errors import BadInput
from ..packing import Layout
from .base import Front

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class Clusters(NamedTuple):
    """Words whose ids are in order of frequency, as those of `tokenizer kind=word` are."""

    borders: tuple[int, ...]  # the first id of each cluster, and how many ids there are
    widths: tuple[int, ...]  # numbers that a word of each is made of

    @classmethod
    def of(cls, cutoffs: Sequence[int], shrink: float, width: int, vocabulary: int) -> "Clusters":
        borders = (0, *cutoffs, vocabulary)
        if not cutoffs or any(a >= b for a, b in pairwise(borders)):
            raise BadInput(f"cutoffs {list(cutoffs)} do not cut {vocabulary:,} words into clusters; give rising ids, all above "
                           "0 and below that")  # fmt: skip
        return cls(borders, tuple(max(1, int(width // shrink**number)) for number in range(len(cutoffs) + 1)))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise(self.borders))

    def owner(self, ids: Tensor) -> Tensor:
        """The cluster of each."""
        return torch.bucketize(ids, torch.tensor(self.borders[1:-1], device=ids.device), right=True)


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


class RarityHead(Variant, frozen=True, tag="by-rarity"):
    """The logarithm of the chance of every word; ids must be in order of frequency."""

    cutoffs: Annotated[tuple[Count, ...], Meta(min_length=1), "the first id of every cluster but that of frequent words"] = (
        2_000, 10_000,
    )  # fmt: skip
    shrink: Annotated[Shrink, "each cluster is scored with so many times fewer numbers than the one before"] = 4.0
    tied: Annotated[bool, "the tables are those of model.front=by-rarity, of the same cutoffs; else its own"] = False
    bias: Annotated[bool, "a number for every word beside the tables"] = True

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "RarityScores":
        front = encoder.front
        if self.tied and not (isinstance(front, ByRarity) and (front.cutoffs, front.shrink) == (self.cutoffs, self.shrink)):
            raise BadInput("a tied head by rarity scores with the tables of model.front=by-rarity; give it the same cutoffs "
                           "and shrink as the head's, or set the head's tied=false")  # fmt: skip
        return RarityScores(self, Clusters.of(self.cutoffs, self.shrink, encoder.width, vocabulary), encoder.width)


class RarityScores(nn.Module):
    def __init__(self, config: RarityHead, clusters: Clusters, width: int) -> None:
        super().__init__()
        self.clusters, parts = clusters, list(zip(clusters.sizes, clusters.widths, strict=True))
        self.rare = nn.Linear(width, len(parts) - 1, bias=config.bias)  # a score for each cluster as a whole
        self.narrow = nn.ModuleList(nn.Linear(width, each, bias=False) for _, each in parts[1:])
        own = [] if config.tied else [nn.Linear(each, size, bias=False) for size, each in parts]
        self.tables = nn.ModuleList(own)
        self.bias = nn.Parameter(torch.zeros(clusters.borders[-1])) if config.bias else None

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, words): logarithms of chances that add up to one."""
        top = self._top(rows, encoder)
        found = [top[:, : self.clusters.sizes[0]]]
        for number in range(1, len(self.clusters.sizes)):
            found.append(self._inside(number, rows, encoder) + self._whole(top, number)[:, None])
        return torch.cat(found, -1)

    def entropy(self, rows: Tensor, encoder: "Encoder", answers: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of these answers, and how many of them came first; only clusters that matter are scored."""
        if isinstance(rows, FakeTensor):  # which `plan` counts: how many answers are rare cannot be told
            scores = self(rows, encoder)
            return F.nll_loss(scores, answers, reduction="sum"), (scores.argmax(-1) == answers).sum()
        top, owner, first = self._top(rows, encoder), self.clusters.owner(answers), self.clusters.sizes[0]
        logs = top.gather(1, torch.where(owner == 0, answers, first + owner - 1)[:, None]).squeeze(1)
        ahead = torch.ones_like(owner, dtype=torch.bool)  # of its cluster
        for number in range(1, len(self.clusters.sizes)):
            some = (owner == number).nonzero().squeeze(1)
            inside = self._inside(number, rows[some], encoder)
            own = inside.gather(1, (answers[some] - self.clusters.borders[number])[:, None]).squeeze(1)
            logs = logs.index_add(0, some, own)
            ahead[some] = own >= inside.max(-1).values if len(some) else ahead[some]
        return -logs.sum(), self._first(rows, encoder, top, logs, owner, ahead)

    @torch.no_grad()
    def _first(self, rows: Tensor, encoder: "Encoder", top: Tensor, logs: Tensor, owner: Tensor, ahead: Tensor) -> Tensor:
        """How many answers came first of all words: no word of a cluster is likelier than the cluster."""
        ahead = ahead & (logs >= top[:, : self.clusters.sizes[0]].max(-1).values)
        for number in range(1, len(self.clusters.sizes)):
            whole = self._whole(top, number)
            some = (ahead & (owner != number) & (whole > logs)).nonzero().squeeze(1)
            if len(some):
                ahead[some] = whole[some] + self._inside(number, rows[some], encoder).max(-1).values <= logs[some]
        return ahead.sum()

    def _top(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, frequent words + clusters): logarithms of chances."""
        return torch.cat([self._scored(0, rows, encoder), self.rare(rows)], -1).float().log_softmax(-1)

    def _inside(self, number: int, rows: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, words of a cluster), given that it is one of them."""
        return self._scored(number, self.narrow[number - 1](rows), encoder).float().log_softmax(-1)

    def _whole(self, top: Tensor, number: int) -> Tensor:
        return top[:, self.clusters.sizes[0] + number - 1]

    def _scored(self, number: int, rows: Tensor, encoder: "Encoder") -> Tensor:
        tables = self.tables
        if not len(tables):
            assert isinstance(encoder.front, RarityTables)
            tables = encoder.front.tables  # not an attribute: each stays one tensor in the checkpoint
        first, last = self.clusters.borders[number : number + 2]
        return F.linear(rows, tables[number].weight, None if self.bias is None else self.bias[first:last])  # type: ignore[arg-type]
