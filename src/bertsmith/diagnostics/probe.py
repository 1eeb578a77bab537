"""What every head attends to, seen as it happens: a layout that watches, whatever is done to queries and keys before."""

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
from ..model.model import Model
from ..model.packing import Layout
from ..objectives import MaskedLM, ObjectiveConfig
from ..objectives.base import to_inputs
from ..rng import Stream, random_bits

SHORT_TEXT_LENGTH = 4  # tokens: in texts that are no longer, every pattern looks like every other


@dataclass(frozen=True)
class AttentionStats:
    """One call of attention, by head."""

    uniform_distance: Tensor  # (heads,): distance from looking at all tokens alike, 0 to 1
    single_token_share: Tensor  # (heads,): share that goes to one and the same token of a text, or to its [SEP]s
    attention_output: Tensor  # (tokens, heads, width of a head): what each token got


@dataclass(frozen=True, kw_only=True)
class RecordingLayout(Layout):
    """Attends as ever, and notes how in `seen`; attention with other borders than a text's own is not looked at."""

    records: list[AttentionStats]
    special_tokens_mask: NDArray[np.bool_]  # (tokens,): [CLS] and [SEP]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if q.shape[0] == k.shape[0] and not args and not kwargs.get("causal") and kwargs.get("keys") is None:
            self.records.append(self._compute_stats(q.float(), k.float(), v.float()))
        return super().attend(q, k, v, *args, **kwargs)

    def _compute_stats(self, q: Tensor, k: Tensor, v: Tensor) -> AttentionStats:
        uneven, single, given = [], [], []
        for a, b in zip(self.cu_seqlens[:-1].tolist(), self.cu_seqlens[1:].tolist(), strict=True):
            weights = torch.einsum("qhd,khd->hqk", q[a:b], k[a:b]).mul(q.shape[-1] ** -0.5).softmax(-1)
            given.append(torch.einsum("hqk,khd->qhd", weights, v[a:b]))
            if b - a <= SHORT_TEXT_LENGTH:
                continue
            by_all = weights.mean(1)  # (heads, keys): what each token gets of everybody's attention
            ends = torch.from_numpy(np.flatnonzero(self.special_tokens_mask[a:b])[1:])
            uneven.append((weights - 1 / (b - a)).abs().sum(-1).mean(-1) / 2)
            single.append(torch.maximum(by_all.max(-1).values, by_all[:, ends].sum(-1)))
        if not uneven:  # too short to tell: neither even nor single
            uneven, single = [torch.ones(q.shape[1])], [torch.zeros(q.shape[1])]
        return AttentionStats(torch.stack(uneven).mean(0), torch.stack(single).mean(0), torch.cat(given))


BATCH_TOKENS = 4096  # read at once: enough for means, and seconds on a CPU
MAX_LENGTH = 128


@dataclass(frozen=True)
class Probe:
    model: Model
    corpus: Corpus
    batch: NumpyBatch

    @cached_property
    def forward_outputs(self) -> tuple[Tensor, list[Tensor], list[AttentionStats]]:
        """Hidden states, what went into each block, and what each attended to."""
        inputs = to_inputs(self.batch)
        kept: list[Tensor] = []
        seen: list[AttentionStats] = []
        layout = RecordingLayout(
            **{f.name: getattr(inputs.layout, f.name) for f in fields(Layout)},
            records=seen,
            special_tokens_mask=self._special_tokens_mask,
        )
        with torch.inference_mode():
            hidden = self.model(Inputs(inputs.input_ids, layout, inputs.token_type_ids), kept)
        return hidden, kept, seen

    @cached_property
    def shuffled_hidden_states(self) -> Tensor:
        """The hidden state of each token, in the order of the text, when it was read with its words in another order."""
        order = self._shuffle_order
        inputs = to_inputs(self.batch)
        with torch.inference_mode():
            hidden = self.model(Inputs(inputs.input_ids[order], inputs.layout, inputs.token_type_ids))
        back = torch.empty_like(hidden)
        back[order] = hidden
        return back

    @property
    def layout(self) -> Layout:
        return to_inputs(self.batch).layout

    @cached_property
    def masked_targets(self) -> NDArray[np.int64]:
        """(words,): which targets were shown as [MASK]: the others stand in sight, or were swapped."""
        return np.flatnonzero(self.batch.input_ids[self.batch.output_indices] == self.corpus.tokenizer.mask_token_id)

    @property
    def has_mlm(self) -> bool:
        """There are hidden words, and a head that guesses them."""
        return len(self.masked_targets) > 0 and "words" in self.model.heads

    def compute_mlm_loss(self, hidden_states: Tensor) -> float:
        """Nats for each hidden word."""
        where, words = (
            torch.from_numpy(some[self.masked_targets]) for some in (self.batch.output_indices, self.batch.target_ids)
        )
        with torch.inference_mode():
            return float(
                torch.nn.functional.cross_entropy(self.model.compute_logits("words", hidden_states[where]).float(), words)
            )

    @cached_property
    def text_mask(self) -> Tensor:
        """(tokens,) bool: text, neither [CLS] nor [SEP]."""
        return torch.from_numpy(~self._special_tokens_mask)

    @cached_property
    def _special_tokens_mask(self) -> NDArray[np.bool_]:
        return np.isin(self.batch.input_ids, (self.corpus.tokenizer.cls_token_id, self.corpus.tokenizer.sep_token_id))

    @cached_property
    def _shuffle_order(self) -> Tensor:
        """Words change places between two marks, so that segments and lengths stay."""
        stretch = 2 * self._special_tokens_mask.cumsum() - self._special_tokens_mask
        return torch.from_numpy(np.lexsort([random_bits(0, Stream.SHUFFLED_WORDS, np.arange(len(stretch))), stretch]))


def build_probe(model: Model, corpus: Corpus, recipe: dict[str, Any], objective: ObjectiveConfig | None) -> Probe:
    """On the first samples that training read, masks as it drew them; plain ones, where there was no training."""
    objective, seed = objective or MaskedLM(), recipe.get("seed", 0)
    length = min([MAX_LENGTH, model.config.encoder.positions, max(recipe.get("length") or [MAX_LENGTH])])
    held_out = 0.0 if recipe.get("valid") else recipe.get("held_out", 0.0)
    try:
        documents, _ = corpus.split(held_out, seed, objective.min_sentences)
        arrays = objective.build_batches(corpus, documents, length, BATCH_TOKENS, seed)(0)
    except UserError:  # no pairs, or no documents to spare, which has a finding of its own
        every = np.arange(len(corpus.document_offsets) - 1)
        arrays = MaskedLM().build_batches(corpus, every, length, BATCH_TOKENS, seed)(0)
    return Probe(model, corpus, arrays)
