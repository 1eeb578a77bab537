"""Vectors of texts: those of texts that are alike are drawn together, those of others in the batch pushed apart."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.batch import Batch
from ..model.heads import HeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..tasks import TextSimilarity
from ..tasks.similarity import Pooling
from ..train.loss import Loss
from .supervised import pool_windows


@dataclass(frozen=True)
class Contrastive:
    """SimCSE (Gao et al. 2021): each text must find its partner among those of the whole batch.

    The partner is the same text under other dropout, or the other text of its pair; a `negative` of a pair is one more
    to be told apart. Pairs with scores are no partners: their cosines are fitted to the scores instead. There is no
    head, and the others are those of one micro-batch: train.accumulate adds none, train.batch_tokens does.
    """

    task: TextSimilarity

    def heads(self) -> dict[str, HeadConfig]:
        return {}

    def finalize_task(self, model: Model) -> TextSimilarity:
        """The task as it is: nothing of it is learnt."""
        return self.task

    def compute_outputs(self, model: Model, batch: Batch) -> Tensor:
        """A vector a sequence, or a text where its windows are joined."""
        rows = pool_tokens(model(batch.inputs), batch.inputs.layout, self.task.pool, model.config.encoder.is_causal)
        return pool_windows(rows, batch)

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        return self.loss_from_embeddings(self.compute_outputs(model, batch).float(), batch)

    def loss_from_embeddings(self, embeddings: Tensor, batch: Batch) -> Loss:
        """What these vectors cost, in sums over the examples."""
        texts = batch.targets["texts"]  # (examples, sides)
        sides = F.normalize(embeddings, dim=-1).unflatten(0, tuple(texts.shape))
        if "score" in batch.targets:
            # Squared error, not CoSENT: it is a sum over pairs, so accumulation and ranks change nothing; CoSENT ranks the
            # pairs of a batch among themselves under one logarithm, and is another loss for every way of cutting batches.
            cosines = (sides[:, 0] * sides[:, 1]).sum(-1)
            return Loss({"task": F.mse_loss(cosines, batch.targets["score"], reduction="sum")})
        candidates = sides[:, 1:].transpose(0, 1).flatten(0, 1)  # the partners of all, then their negatives
        cosines = (sides[:, 0] @ candidates.T).masked_fill(false_negative_mask(texts), float("-inf"))
        partner = torch.arange(len(texts), device=embeddings.device)
        total = F.cross_entropy(cosines / self.task.temperature, partner, reduction="sum")
        right = (cosines.argmax(-1) == partner).sum()
        return Loss({"task": total}, {"accuracy": (right, batch.target_counts["task"])})


def false_negative_mask(text_ids: Tensor) -> Tensor:
    """(examples, candidates) True where a candidate is no partner by its place, but by what it says may well be one.

    `texts` (examples, sides) numbers the texts, equal ones alike. A text that comes twice in a batch would be pushed
    away from itself, or from a partner it has in another pair.
    """
    examples = len(text_ids)
    first, partner = text_ids[:, :1], text_ids[:, 1:2]
    candidates = text_ids[:, 1:].T.flatten()
    alike = (candidates == first) | (candidates == partner)
    alike[:, :examples] |= first == text_ids[:, 0]  # the partner of the same text in another pair
    alike[:, :examples].fill_diagonal_(False)
    return alike


def pool_tokens(hidden_states: Tensor, layout: Layout, pooling: Pooling, is_causal: bool = False) -> Tensor:
    """(tokens, width) -> (sequences, width): the first token of each, of a causal model the last, which alone has seen the
    text; or the mean of all, [CLS] and [SEP] with them."""
    if pooling == "first":
        return hidden_states[layout.last_token if is_causal else layout.first_token]
    return layout.mean_pool(hidden_states.float())
