"""A vocabulary in clusters, frequent words first: the rarer the words of one, the fewer numbers each is made of."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...config import PosInt, Variant
from ...errors import UserError
from ..packing import Layout
from .base import InputEmbedding

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class Clusters(NamedTuple):
    """Words whose ids are in order of frequency, as those of `tokenizer kind=word` are."""

    boundaries: tuple[int, ...]  # the first id of each cluster, and how many ids there are
    dims: tuple[int, ...]  # numbers that a word of each is made of

    @classmethod
    def from_cutoffs(cls, cutoffs: Sequence[int], div_value: float, hidden_size: int, vocab_size: int) -> "Clusters":
        borders = (0, *cutoffs, vocab_size)
        if not cutoffs or any(a >= b for a, b in pairwise(borders)):
            raise UserError(f"cutoffs {list(cutoffs)} do not cut {vocab_size:,} words into clusters; give rising ids, all above "
                           "0 and below that")  # fmt: skip
        return cls(borders, tuple(max(1, int(hidden_size // div_value**number)) for number in range(len(cutoffs) + 1)))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise(self.boundaries))

    def cluster_of(self, ids: Tensor) -> Tensor:
        """The cluster of each."""
        return torch.bucketize(ids, torch.tensor(self.boundaries[1:-1], device=ids.device), right=True)


DivValue = Annotated[float, Meta(ge=1, le=1e6)]


class AdaptiveInputConfig(Variant, frozen=True, tag="by-rarity"):
    """Tables of clusters of words; ids must be in order of frequency."""

    cutoffs: Annotated[tuple[PosInt, ...], Meta(min_length=1), "the first id of every cluster but that of frequent words"] = (
        2_000, 10_000,
    )  # fmt: skip
    shrink: Annotated[DivValue, "each cluster has so many times fewer numbers a word than the one before"] = 4.0

    token_table_dim: ClassVar[int] = 0  # numbers in the encoder's table of tokens: there is none
    causal: ClassVar[bool] = True

    def build(self, hidden_size: int, vocab_size: int) -> "AdaptiveInput":
        return AdaptiveInput(Clusters.from_cutoffs(self.cutoffs, self.shrink, hidden_size, vocab_size), hidden_size)


class AdaptiveInput(InputEmbedding):
    def __init__(self, clusters: Clusters, hidden_size: int) -> None:
        super().__init__()
        self.clusters = clusters
        self.tables = nn.ModuleList(nn.Embedding(size, each) for size, each in zip(clusters.sizes, clusters.dims, strict=True))
        self.widen = nn.ModuleList(nn.Linear(each, hidden_size, bias=False) for each in clusters.dims[1:])

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        """Every token goes through every cluster: that costs less than a third of one matrix, and nothing has to wait."""
        owner, found = self.clusters.cluster_of(input_ids), []
        for number, (words, first) in enumerate(zip(self.tables, self.clusters.boundaries, strict=False)):
            rows = words((input_ids - first).clamp(0, self.clusters.sizes[number] - 1))
            rows = self.widen[number - 1](rows) if number else rows
            found.append(torch.where((owner == number)[:, None], rows, 0))
        return torch.stack(found).sum(0)


class AdaptiveSoftmaxHeadConfig(Variant, frozen=True, tag="by-rarity"):
    """The logarithm of the chance of every word; ids must be in order of frequency."""

    cutoffs: Annotated[tuple[PosInt, ...], Meta(min_length=1), "the first id of every cluster but that of frequent words"] = (
        2_000, 10_000,
    )  # fmt: skip
    shrink: Annotated[DivValue, "each cluster is scored with so many times fewer numbers than the one before"] = 4.0
    tied: Annotated[bool, "the tables are those of model.front=by-rarity, of the same cutoffs; else its own"] = False
    bias: Annotated[bool, "a number for every word beside the tables"] = True

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "AdaptiveSoftmax":
        front = encoder.front
        if self.tied and not (
            isinstance(front, AdaptiveInputConfig) and (front.cutoffs, front.shrink) == (self.cutoffs, self.shrink)
        ):
            raise UserError("a tied head by rarity scores with the tables of model.front=by-rarity; give it the same cutoffs "
                           "and shrink as the head's, or set the head's tied=false")  # fmt: skip
        return AdaptiveSoftmax(self, Clusters.from_cutoffs(self.cutoffs, self.shrink, encoder.width, vocab_size), encoder.width)


class AdaptiveSoftmax(nn.Module):
    def __init__(self, config: AdaptiveSoftmaxHeadConfig, clusters: Clusters, hidden_size: int) -> None:
        super().__init__()
        self.clusters, parts = clusters, list(zip(clusters.sizes, clusters.dims, strict=True))
        self.rare = nn.Linear(hidden_size, len(parts) - 1, bias=config.bias)  # a score for each cluster as a whole
        self.narrow = nn.ModuleList(nn.Linear(hidden_size, each, bias=False) for _, each in parts[1:])
        own = [] if config.tied else [nn.Linear(each, size, bias=False) for size, each in parts]
        self.tables = nn.ModuleList(own)
        self.bias = nn.Parameter(torch.zeros(clusters.boundaries[-1])) if config.bias else None

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, words): logarithms of chances that add up to one."""
        top = self._head_log_probs(hidden_states, encoder)
        found = [top[:, : self.clusters.sizes[0]]]
        for number in range(1, len(self.clusters.sizes)):
            found.append(self._tail_log_probs(number, hidden_states, encoder) + self._cluster_log_prob(top, number)[:, None])
        return torch.cat(found, -1)

    def cross_entropy(self, hidden_states: Tensor, encoder: "Encoder", labels: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of these answers, and how many of them came first; only clusters that matter are scored."""
        if isinstance(hidden_states, FakeTensor):  # which `plan` counts: how many answers are rare cannot be told
            scores = self(hidden_states, encoder)
            return F.nll_loss(scores, labels, reduction="sum"), (scores.argmax(-1) == labels).sum()
        top, owner, first = (
            self._head_log_probs(hidden_states, encoder),
            self.clusters.cluster_of(labels),
            self.clusters.sizes[0],
        )
        logs = top.gather(1, torch.where(owner == 0, labels, first + owner - 1)[:, None]).squeeze(1)
        ahead = torch.ones_like(owner, dtype=torch.bool)  # of its cluster
        for number in range(1, len(self.clusters.sizes)):
            some = (owner == number).nonzero().squeeze(1)
            inside = self._tail_log_probs(number, hidden_states[some], encoder)
            own = inside.gather(1, (labels[some] - self.clusters.boundaries[number])[:, None]).squeeze(1)
            logs = logs.index_add(0, some, own)
            ahead[some] = own >= inside.max(-1).values if len(some) else ahead[some]
        return -logs.sum(), self._count_top1(hidden_states, encoder, top, logs, owner, ahead)

    @torch.no_grad()
    def _count_top1(
        self,
        hidden_states: Tensor,
        encoder: "Encoder",
        head_log_probs: Tensor,
        log_probs: Tensor,
        clusters: Tensor,
        is_top1: Tensor,
    ) -> Tensor:
        """How many answers came first of all words: no word of a cluster is likelier than the cluster."""
        is_top1 = is_top1 & (log_probs >= head_log_probs[:, : self.clusters.sizes[0]].max(-1).values)
        for number in range(1, len(self.clusters.sizes)):
            whole = self._cluster_log_prob(head_log_probs, number)
            some = (is_top1 & (clusters != number) & (whole > log_probs)).nonzero().squeeze(1)
            if len(some):
                is_top1[some] = (
                    whole[some] + self._tail_log_probs(number, hidden_states[some], encoder).max(-1).values <= log_probs[some]
                )
        return is_top1.sum()

    def _head_log_probs(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, frequent words + clusters): logarithms of chances."""
        return (
            torch.cat([self._cluster_logits(0, hidden_states, encoder), self.rare(hidden_states)], -1).float().log_softmax(-1)
        )

    def _tail_log_probs(self, cluster: int, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, words of a cluster), given that it is one of them."""
        return self._cluster_logits(cluster, self.narrow[cluster - 1](hidden_states), encoder).float().log_softmax(-1)

    def _cluster_log_prob(self, head_log_probs: Tensor, cluster: int) -> Tensor:
        return head_log_probs[:, self.clusters.sizes[0] + cluster - 1]

    def _cluster_logits(self, cluster: int, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        tables = self.tables
        if not len(tables):
            assert isinstance(encoder.front, AdaptiveInput)
            tables = encoder.front.tables  # not an attribute: each stays one tensor in the checkpoint
        first, last = self.clusters.boundaries[cluster : cluster + 2]
        return F.linear(hidden_states, tables[cluster].weight, None if self.bias is None else self.bias[first:last])  # type: ignore[arg-type]
