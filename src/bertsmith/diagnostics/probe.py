"""A forward pass over a training batch that records hidden states, attention statistics and MLM loss for the checks."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.collate import NumpyBatch
from ..corpus.store import Corpus
from ..errors import UserError
from ..model.batch import Inputs
from ..model.heads import LM_HEAD
from ..model.model import Model
from ..model.packing import Layout
from ..objectives import MaskedLM, ObjectiveConfig, require_network
from ..objectives.base import to_inputs
from ..rng import Stream, random_bits

SHORT_TEXT_LENGTH = 4  # tokens; shorter texts are ignored, since all attention patterns look alike there
BATCH_TOKENS = 4096  # enough for stable means, and seconds on a CPU
MAX_LENGTH = 128


@dataclass(frozen=True)
class AttentionStats:
    """Statistics of one attention layer, by head."""

    uniform_distance: Tensor  # (heads,): mean total variation distance from uniform attention, 0 to 1
    single_token_share: Tensor  # (heads,): mean attention to the most attended token of a text, or to its [SEP]s
    attention_output: Tensor  # (tokens, heads, head_dim)


@dataclass(frozen=True, kw_only=True)
class RecordingLayout(Layout):
    """A layout that appends statistics to `records` at each attention call; only full self-attention is recorded."""

    records: list[AttentionStats]
    special_tokens_mask: NDArray[np.bool_]  # (tokens,): [CLS] and [SEP]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if q.shape[0] == k.shape[0] and not args and not kwargs.get("causal") and kwargs.get("keys") is None:
            self.records.append(self._compute_stats(q.float(), k.float(), v.float()))
        return super().attend(q, k, v, *args, **kwargs)

    def _compute_stats(self, q: Tensor, k: Tensor, v: Tensor) -> AttentionStats:
        """q, k, v: (tokens, heads, head_dim), float32."""
        uniform_distance, single_token_share, outputs = [], [], []
        for start, end in zip(self.cu_seqlens[:-1].tolist(), self.cu_seqlens[1:].tolist(), strict=True):
            weights = torch.einsum("qhd,khd->hqk", q[start:end], k[start:end]).mul(q.shape[-1] ** -0.5).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, v[start:end]))
            if end - start <= SHORT_TEXT_LENGTH:
                continue
            attention_per_key = weights.mean(1)  # (heads, keys): mean over queries
            sep_positions = torch.from_numpy(np.flatnonzero(self.special_tokens_mask[start:end])[1:])
            uniform_distance.append((weights - 1 / (end - start)).abs().sum(-1).mean(-1) / 2)
            to_separators = attention_per_key[:, sep_positions].sum(-1)
            single_token_share.append(torch.maximum(attention_per_key.max(-1).values, to_separators))
        if not uniform_distance:  # all texts are too short: neither uniform nor single-token
            uniform_distance, single_token_share = [torch.ones(q.shape[1])], [torch.zeros(q.shape[1])]
        return AttentionStats(
            torch.stack(uniform_distance).mean(0), torch.stack(single_token_share).mean(0), torch.cat(outputs)
        )


@dataclass(frozen=True)
class Probe:
    """A model, a corpus, and a masked batch of it; forward passes are computed once, on first access."""

    model: Model
    corpus: Corpus
    batch: NumpyBatch

    @cached_property
    def forward_outputs(self) -> tuple[Tensor, list[Tensor], list[AttentionStats]]:
        """(hidden states (tokens, hidden size), inputs of each block, attention statistics of each block)."""
        inputs = to_inputs(self.batch)
        block_inputs: list[Tensor] = []
        records: list[AttentionStats] = []
        layout = RecordingLayout(
            **{f.name: getattr(inputs.layout, f.name) for f in fields(Layout)},
            records=records,
            special_tokens_mask=self._special_tokens_mask,
        )
        with torch.inference_mode():
            hidden_states = self.model(Inputs(inputs.input_ids, layout, inputs.token_type_ids), block_inputs)
        return hidden_states, block_inputs, records

    @cached_property
    def shuffled_hidden_states(self) -> Tensor:
        """(tokens, hidden size): hidden states with shuffled words, put back into the original order of tokens."""
        order = self._shuffle_order
        inputs = to_inputs(self.batch)
        with torch.inference_mode():
            hidden_states = self.model(Inputs(inputs.input_ids[order], inputs.layout, inputs.token_type_ids))
        restored = torch.empty_like(hidden_states)
        restored[order] = hidden_states
        return restored

    @property
    def layout(self) -> Layout:
        return to_inputs(self.batch).layout

    @cached_property
    def masked_targets(self) -> NDArray[np.int64]:
        """Indices of the targets whose input is [MASK], and not the word itself or a random token."""
        return np.flatnonzero(self.batch.input_ids[self.batch.output_indices] == self.corpus.tokenizer.mask_token_id)

    @property
    def has_mlm(self) -> bool:
        """The batch has masked targets and the model has an MLM head."""
        return len(self.masked_targets) > 0 and LM_HEAD in self.model.heads

    def compute_mlm_loss(self, hidden_states: Tensor) -> float:
        """Mean cross-entropy in nats over the masked targets."""
        positions, targets = (
            torch.from_numpy(values[self.masked_targets]) for values in (self.batch.output_indices, self.batch.target_ids)
        )
        with torch.inference_mode():
            return float(
                torch.nn.functional.cross_entropy(self.model.compute_logits(LM_HEAD, hidden_states[positions]).float(), targets)
            )

    @cached_property
    def text_mask(self) -> Tensor:
        """(tokens,) bool: neither [CLS] nor [SEP]."""
        return torch.from_numpy(~self._special_tokens_mask)

    @cached_property
    def _special_tokens_mask(self) -> NDArray[np.bool_]:
        return np.isin(self.batch.input_ids, (self.corpus.tokenizer.cls_token_id, self.corpus.tokenizer.sep_token_id))

    @cached_property
    def _shuffle_order(self) -> Tensor:
        """A permutation of tokens that shuffles words only between special tokens, so that segments and lengths are kept."""
        segment_ids = 2 * self._special_tokens_mask.cumsum() - self._special_tokens_mask
        return torch.from_numpy(np.lexsort([random_bits(0, Stream.SHUFFLED_WORDS, np.arange(len(segment_ids))), segment_ids]))


def build_probe(model: Model, corpus: Corpus, recipe: dict[str, Any], objective: ObjectiveConfig | None) -> Probe:
    """Probes with the first training batch, masked as in training; with a plain MLM batch, if `objective` is None."""
    objective, seed = objective or MaskedLM(), recipe.get("seed", 0)
    max_length = min([MAX_LENGTH, model.config.encoder.max_position_embeddings, max(recipe.get("max_length") or [MAX_LENGTH])])
    validation_split = 0.0 if recipe.get("valid") else recipe.get("validation_split", 0.0)
    try:
        documents, _ = corpus.split(validation_split, seed, objective.min_sentences)
        batch = require_network(objective).build_batches(corpus, documents, max_length, BATCH_TOKENS, seed)(0)
    except UserError:  # no pairs or too few documents: there is a finding for that
        all_documents = np.arange(len(corpus.document_offsets) - 1)
        batch = MaskedLM().build_batches(corpus, all_documents, max_length, BATCH_TOKENS, seed)(0)
    return Probe(model, corpus, batch)
