"""Contrastive learning of sentence embeddings with in-batch negatives (SimCSE, Gao et al. 2021).

Two refinements: large batches in the memory of small ones (GradCache, Gao et al. 2021), and embeddings whose first dimensions
are embeddings themselves (Matryoshka, Kusupati et al. 2022).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..model.batch import Inputs
from ..model.heads import HeadConfig
from ..model.heads.embedding import EMBEDDING_HEAD, DenseConfig, EmbeddingHeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..tasks import TextSimilarity
from ..tasks.base import EncodedExamples
from ..tasks.similarity import Pooling
from ..train.objective import Batch, Loss
from .supervised import ExampleBatches, pool_windows


@dataclass(frozen=True)
class Contrastive:
    """SimCSE: cross entropy over cosine similarities / temperature, the positives of the other examples being negatives.

    The positive is the same text under another dropout mask, or the second text of a pair; a third text (`negative`) is a
    hard negative. Pairs with scores are trained by the squared error of their cosine instead. With `task.matryoshka_dims` the
    loss is the sum of those of the first d dimensions, for each d, and of all. The only heads are dense layers
    (`task.projection`, `task.center`, an imported model). In-batch negatives come from one micro-batch: train.batch_tokens
    adds some, train.gradient_accumulation_steps does not; a batch of more than task.mini_batch_tokens is encoded in parts.
    """

    uses_pooler: ClassVar[bool] = False

    task: TextSimilarity

    def heads(self) -> dict[str, HeadConfig]:
        if self.task.projection is None:
            return {}
        layer = DenseConfig(out_features=self.task.projection, activation="none")
        return {EMBEDDING_HEAD: EmbeddingHeadConfig(layers=(layer,))}

    def build_batches(
        self, encoded: EncodedExamples, batch_tokens: int, seed: int, is_prefix_lm: bool = False
    ) -> ExampleBatches:
        return ExampleBatches(self.task, encoded, batch_tokens, seed)

    def finalize_task(self, model: Model) -> TextSimilarity:
        """The task unchanged: it has no learned parameters."""
        return self.task

    def compute_outputs(self, model: Model, batch: Batch[Inputs], hidden_states: Tensor | None = None) -> Tensor:
        """Embeddings (texts, embedding size): one per sequence, or per text where its windows are pooled.

        hidden_states: (tokens, hidden_size) of the encoder, if already computed.
        """
        if hidden_states is not None:
            rows = embed_sequences(model, hidden_states, batch.inputs.layout, self.task.pooling)
        elif model.training and batch.num_tokens > self.task.mini_batch_tokens:
            rows = self._embed_in_parts(model, batch.inputs)
        else:
            rows = self._embed(model, batch.inputs)
        return pool_windows(rows, batch)

    def _embed(self, model: Model, inputs: Inputs) -> Tensor:
        return embed_sequences(model, model(inputs), inputs.layout, self.task.pooling)

    def _embed_in_parts(self, model: Model, inputs: Inputs) -> Tensor:
        """GradCache: the embeddings of the whole batch, with the activations of one part of it at a time.

        Each part is encoded without storing activations, and once more in the backward pass, with the same random state and
        so the same dropout; there it receives the gradients of its embeddings. Gradients are those of the whole batch.
        """
        parts = split_sequences(inputs, self.task.mini_batch_tokens)
        return torch.cat([checkpoint(self._embed, model, part, use_reentrant=False) for part in parts])

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        return self.loss_from_embeddings(self.compute_outputs(model, batch).float(), batch)

    def loss_from_outputs(self, model: Model, embeddings: Tensor, batch: Batch[Inputs]) -> Loss:
        """`loss_from_embeddings`; the model has no learned parameters beside them."""
        return self.loss_from_embeddings(embeddings, batch)

    def soft_labels(self, outputs: Tensor, teacher_outputs: Tensor, batch: Batch[Inputs], temperature: float) -> Tensor:
        """Squared error of the cosines between the texts of an example, summed over examples; sizes may differ."""
        cosines = []
        for embeddings in (outputs, teacher_outputs):
            sides = F.normalize(embeddings.float(), dim=-1).unflatten(0, tuple(batch.targets["texts"].shape))
            cosines.append((sides[:, :1] * sides[:, 1:]).sum(-1))
        return F.mse_loss(cosines[0], cosines[1], reduction="none").mean(-1).sum()

    def loss_from_embeddings(self, embeddings: Tensor, batch: Batch[Inputs]) -> Loss:
        """Loss summed over examples. embeddings: (examples * sides, hidden_size)."""
        sizes = [size for size in self.task.matryoshka_dims if size < embeddings.shape[-1]]
        loss = self._loss_from_embeddings(embeddings, batch)
        nested = [self._loss_from_embeddings(embeddings[:, :size], batch).parts["task"] for size in sizes]
        return replace(loss, parts={"task": torch.stack([loss.parts["task"], *nested]).sum()}) if nested else loss

    def _loss_from_embeddings(self, embeddings: Tensor, batch: Batch[Inputs]) -> Loss:
        text_ids = batch.targets["texts"]  # (examples, sides)
        unit_embeddings = F.normalize(embeddings, dim=-1).unflatten(0, tuple(text_ids.shape))
        if "score" in batch.targets:
            # Squared error, not CoSENT: it is a sum over pairs, independent of accumulation and ranks. CoSENT compares all
            # pairs of a batch under one logarithm, so it is another loss for every batch size.
            cosines = (unit_embeddings[:, 0] * unit_embeddings[:, 1]).sum(-1)
            return Loss({"task": F.mse_loss(cosines, batch.targets["score"], reduction="sum")})
        # the positives of all examples, then their hard negatives
        candidates = unit_embeddings[:, 1:].transpose(0, 1).flatten(0, 1)
        cosines = (unit_embeddings[:, 0] @ candidates.T).masked_fill(false_negative_mask(text_ids), float("-inf"))
        positive = torch.arange(len(text_ids), device=embeddings.device)
        total = F.cross_entropy(cosines / self.task.temperature, positive, reduction="sum")
        num_correct = (cosines.argmax(-1) == positive).sum()
        return Loss({"task": total}, {"accuracy": (num_correct, batch.target_counts["task"])})


def split_sequences(inputs: Inputs, max_tokens: int) -> Iterator[Inputs]:
    """Packed sequences in parts of at most `max_tokens` tokens, and at least one sequence each, in their order."""
    layout, lengths = inputs.layout, inputs.layout.lengths.tolist()
    first = start = 0
    while first < len(lengths):
        last, stop = first + 1, start + lengths[first]
        while last < len(lengths) and stop + lengths[last] - start <= max_tokens:
            last, stop = last + 1, stop + lengths[last]
        tokens = slice(start, stop)
        is_global = layout.explicit_global_tokens
        if is_global is not None:
            is_global = is_global[(is_global >= start) & (is_global < stop)] - start
        yield Inputs(
            inputs.input_ids[tokens],
            Layout.from_lengths(lengths[first:last], global_tokens=is_global).to(inputs.input_ids.device),
            None if inputs.token_type_ids is None else inputs.token_type_ids[tokens],
            None if inputs.embedding_delta is None else inputs.embedding_delta[tokens],
        )
        first, start = last, stop


def false_negative_mask(text_ids: Tensor) -> Tensor:
    """(examples, candidates): True where an in-batch negative has the text of the anchor or of a positive of it.

    text_ids: (examples, sides), equal texts have equal ids. Without the mask, a text that occurs twice in a batch would be
    pushed away from itself, or from its positive in another pair.
    """
    num_examples = len(text_ids)
    anchor, positive = text_ids[:, :1], text_ids[:, 1:2]
    candidates = text_ids[:, 1:].T.flatten()
    mask = (candidates == anchor) | (candidates == positive)
    mask[:, :num_examples] |= anchor == text_ids[:, 0]  # the positive of the same anchor in another pair
    mask[:, :num_examples].fill_diagonal_(False)
    return mask


def embed_sequences(model: Model, hidden_states: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(tokens, hidden_size) -> (sequences, embedding size): the pooled tokens, through dense layers if there are any."""
    vectors = pool_tokens(hidden_states, layout, pooling, model.config.encoder.is_causal)
    return model.compute_logits(EMBEDDING_HEAD, vectors) if EMBEDDING_HEAD in model.heads else vectors


def pool_tokens(hidden_states: Tensor, layout: Layout, pooling: Pooling, is_causal: bool = False) -> Tensor:
    """(tokens, hidden_size) -> (sequences, hidden_size).

    `cls`: the first token; of a causal model the last one, which attends to the whole text. `mean`: the mean over all
    tokens, [CLS] and [SEP] included.
    """
    if pooling == "cls":
        return hidden_states[layout.last_token if is_causal else layout.first_token]
    return layout.mean_pool(hidden_states.float())
