"""Adaptive input embedding (Baevski & Auli 2019) and adaptive softmax (Grave et al. 2017).

The vocabulary is split into clusters by frequency; the rarer a cluster, the smaller its embedding dimension.
"""

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
from ...tokenization.characters import Lexicon
from ..linear import Linear
from ..packing import Layout
from .base import InputEmbedding

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class Clusters(NamedTuple):
    """Frequency clusters of a vocabulary whose ids are sorted by frequency, as those of `tokenizer kind=word` are."""

    boundaries: tuple[int, ...]  # first id of each cluster, then vocab_size
    dims: tuple[int, ...]  # embedding dimension of each cluster

    @classmethod
    def from_cutoffs(cls, cutoffs: Sequence[int], div_value: float, hidden_size: int, vocab_size: int) -> "Clusters":
        """Cluster i has the ids from cutoff i - 1 to cutoff i and dimension hidden_size // div_value**i."""
        boundaries = (0, *cutoffs, vocab_size)
        if not cutoffs or any(a >= b for a, b in pairwise(boundaries)):
            raise UserError(
                f"cutoffs={list(cutoffs)} must be increasing token ids above 0 and below the vocabulary size of {vocab_size:,}"
            )
        return cls(boundaries, tuple(max(1, int(hidden_size // div_value**cluster)) for cluster in range(len(cutoffs) + 1)))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise(self.boundaries))

    def cluster_of(self, ids: Tensor) -> Tensor:
        """Cluster index of each id."""
        return torch.bucketize(ids, torch.tensor(self.boundaries[1:-1], device=ids.device), right=True)


DivValue = Annotated[float, Meta(ge=1, le=1e6)]


class AdaptiveInputConfig(Variant, frozen=True, tag="adaptive"):
    """Adaptive input: one embedding table for each frequency cluster; ids must be sorted by frequency."""

    cutoffs: Annotated[tuple[PosInt, ...], Meta(min_length=1), "first token id of each cluster after the most frequent one"] = (
        2_000, 10_000,
    )  # fmt: skip
    div_value: Annotated[DivValue, "factor by which the embedding size shrinks from cluster to cluster"] = 4.0

    causal: ClassVar[bool] = True

    def token_table_dim(self, hidden_size: int) -> int:
        """0: the encoder has no token embedding table."""
        return 0

    def build(self, hidden_size: int, vocab_size: int, lexicon: Lexicon | None = None) -> "AdaptiveInput":
        return AdaptiveInput(Clusters.from_cutoffs(self.cutoffs, self.div_value, hidden_size, vocab_size), hidden_size)


class AdaptiveInput(InputEmbedding):
    """Embedding of each token from the table of its cluster, projected to hidden_size."""

    def __init__(self, clusters: Clusters, hidden_size: int) -> None:
        super().__init__()
        self.clusters = clusters
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, dim) for size, dim in zip(clusters.sizes, clusters.dims, strict=True)
        )
        self.projections = nn.ModuleList(Linear(dim, hidden_size, bias=False) for dim in clusters.dims[1:])

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        """Computes every token in every cluster: costs less than a third of one matrix, and needs no GPU synchronization."""
        cluster_ids, cluster_rows = self.clusters.cluster_of(input_ids), []
        for cluster, (table, first) in enumerate(zip(self.embeddings, self.clusters.boundaries, strict=False)):
            rows = table((input_ids - first).clamp(0, self.clusters.sizes[cluster] - 1))
            rows = self.projections[cluster - 1](rows) if cluster else rows
            cluster_rows.append(torch.where((cluster_ids == cluster)[:, None], rows, 0))
        return torch.stack(cluster_rows).sum(0)


class AdaptiveSoftmaxHeadConfig(Variant, frozen=True, tag="adaptive"):
    """Adaptive softmax: log-probability of every word; ids must be sorted by frequency."""

    cutoffs: Annotated[tuple[PosInt, ...], Meta(min_length=1), "first token id of each cluster after the most frequent one"] = (
        2_000, 10_000,
    )  # fmt: skip
    div_value: Annotated[DivValue, "factor by which the projection size shrinks from cluster to cluster"] = 4.0
    tied: Annotated[bool, "tie the output embeddings to those of model.embeddings=adaptive (same cutoffs)"] = False
    bias: Annotated[bool, "bias for each token of the vocabulary"] = True

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "AdaptiveSoftmax":
        input_config = encoder.embeddings
        if self.tied and not (
            isinstance(input_config, AdaptiveInputConfig)
            and (input_config.cutoffs, input_config.div_value) == (self.cutoffs, self.div_value)
        ):
            raise UserError("a tied adaptive softmax shares the tables of model.embeddings=adaptive; set the same cutoffs and "
                           "div_value in both, or the head's tied=false")  # fmt: skip
        return AdaptiveSoftmax(
            self, Clusters.from_cutoffs(self.cutoffs, self.div_value, encoder.hidden_size, vocab_size), encoder.hidden_size
        )


class AdaptiveSoftmax(nn.Module):
    """log p(w) = log p(w) in the head for frequent words, else log p(cluster) + log p(w | cluster)."""

    def __init__(self, config: AdaptiveSoftmaxHeadConfig, clusters: Clusters, hidden_size: int) -> None:
        super().__init__()
        self.clusters, shapes = clusters, list(zip(clusters.sizes, clusters.dims, strict=True))
        self.cluster_classifier = Linear(hidden_size, len(shapes) - 1, bias=config.bias)  # logits of the tail clusters
        self.projections = nn.ModuleList(Linear(hidden_size, dim, bias=False) for _, dim in shapes[1:])
        own_embeddings = [] if config.tied else [Linear(dim, size, bias=False) for size, dim in shapes]
        self.output_embeddings = nn.ModuleList(own_embeddings)
        self.bias = nn.Parameter(torch.zeros(clusters.boundaries[-1])) if config.bias else None

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, vocab_size) float32: log-probabilities."""
        head_log_probs = self._head_log_probs(hidden_states, encoder)
        log_probs = [head_log_probs[:, : self.clusters.sizes[0]]]
        for cluster in range(1, len(self.clusters.sizes)):
            log_probs.append(
                self._tail_log_probs(cluster, hidden_states, encoder) + self._cluster_log_prob(head_log_probs, cluster)[:, None]
            )
        return torch.cat(log_probs, -1)

    def cross_entropy(self, hidden_states: Tensor, encoder: "Encoder", labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over rows, and the number of correct (top-1) predictions; computes only the clusters needed."""
        if isinstance(hidden_states, FakeTensor):  # FLOP counting in `plan`: the labels' clusters are unknown
            log_probs_all = self(hidden_states, encoder)
            return F.nll_loss(log_probs_all, labels, reduction="sum"), (log_probs_all.argmax(-1) == labels).sum()
        head_log_probs, cluster_ids, head_size = (
            self._head_log_probs(hidden_states, encoder),
            self.clusters.cluster_of(labels),
            self.clusters.sizes[0],
        )
        log_probs = head_log_probs.gather(
            1, torch.where(cluster_ids == 0, labels, head_size + cluster_ids - 1)[:, None]
        ).squeeze(1)
        is_top1 = torch.ones_like(cluster_ids, dtype=torch.bool)  # whether the label is the top word of its cluster
        for cluster in range(1, len(self.clusters.sizes)):
            row_indices = (cluster_ids == cluster).nonzero().squeeze(1)
            tail_log_probs = self._tail_log_probs(cluster, hidden_states[row_indices], encoder)
            label_log_probs = tail_log_probs.gather(
                1, (labels[row_indices] - self.clusters.boundaries[cluster])[:, None]
            ).squeeze(1)
            log_probs = log_probs.index_add(0, row_indices, label_log_probs)
            is_top1[row_indices] = (
                label_log_probs >= tail_log_probs.max(-1).values if len(row_indices) else is_top1[row_indices]
            )
        return -log_probs.sum(), self._count_top1(hidden_states, encoder, head_log_probs, log_probs, cluster_ids, is_top1)

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
        """Number of labels that are the top-1 word; a cluster less likely than the label need not be scored."""
        is_top1 = is_top1 & (log_probs >= head_log_probs[:, : self.clusters.sizes[0]].max(-1).values)
        for cluster in range(1, len(self.clusters.sizes)):
            cluster_log_prob = self._cluster_log_prob(head_log_probs, cluster)
            row_indices = (is_top1 & (clusters != cluster) & (cluster_log_prob > log_probs)).nonzero().squeeze(1)
            if len(row_indices):
                is_top1[row_indices] = (
                    cluster_log_prob[row_indices]
                    + self._tail_log_probs(cluster, hidden_states[row_indices], encoder).max(-1).values
                    <= log_probs[row_indices]
                )
        return is_top1.sum()

    def _head_log_probs(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, frequent words + tail clusters): log-probabilities."""
        return (
            torch.cat([self._cluster_logits(0, hidden_states, encoder), self.cluster_classifier(hidden_states)], -1)
            .float()
            .log_softmax(-1)
        )

    def _tail_log_probs(self, cluster: int, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, words of the cluster): log p(word | cluster)."""
        return self._cluster_logits(cluster, self.projections[cluster - 1](hidden_states), encoder).float().log_softmax(-1)

    def _cluster_log_prob(self, head_log_probs: Tensor, cluster: int) -> Tensor:
        return head_log_probs[:, self.clusters.sizes[0] + cluster - 1]

    def _cluster_logits(self, cluster: int, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        embeddings = self.output_embeddings
        if not len(embeddings):
            assert isinstance(encoder.input_embeddings, AdaptiveInput)
            embeddings = (
                encoder.input_embeddings.embeddings
            )  # not attributes of the head, so that the checkpoint holds them once
        first, last = self.clusters.boundaries[cluster : cluster + 2]
        return F.linear(hidden_states, embeddings[cluster].weight, None if self.bias is None else self.bias[first:last])  # type: ignore[arg-type]
