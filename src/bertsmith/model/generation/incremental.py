"""Incremental decoding: the one interface by which `search` generates with any model, and its implementations.

| decoder | models | state |
|---|---|---|
| `KVCacheDecoder` | causal models whose mixers have a cache; prefix LMs | `KVCache` |
| `SegmentMemoryDecoder` | Transformer-XL, Adaptive-Span | `SegmentMemory` of all positions |
| `Seq2SeqDecoder` | encoder-decoders: Transformer, RNN | the decoder's own (`Decoder.init_state`) |
| `UncachedDecoder` | any other causal model | the texts |

`build_incremental_decoder` and `build_seq2seq_decoder` choose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..batch import Inputs
from ..embeddings import AdaptiveInputConfig
from ..heads import LM_HEAD
from ..kv_cache import KVCache, supports_kv_cache
from ..model import Model
from ..packing import Layout
from ..segment_memory import SegmentMemory

Ints = NDArray[np.int64]


class IncrementalDecoder(Protocol):
    """A model that generates token by token. Its state has one row for each text; a state passed in may be changed in place
    and must not be used again."""

    def prefill(self, prompts: Sequence[Ints]) -> tuple[Any, Tensor]:
        """Process the prompts: state with one row for each, and (rows, vocab_size) logits of the next token."""
        ...

    def decode_step(self, state: Any, input_ids: Tensor) -> tuple[Any, Tensor]:
        """State and logits after one more token for each row; input_ids: (rows,), on the device of the logits."""
        ...

    def reorder_state(self, state: Any, row_indices: Tensor) -> Any:
        """State with the rows `row_indices`, which may drop and repeat rows."""
        ...


def build_incremental_decoder(model: Model, max_new_tokens: int, vocab_size: int | None = None) -> IncrementalDecoder:
    """The incremental decoder of a causal model, which continues its prompts by at most `max_new_tokens`.

    Logits beyond `vocab_size` (padding rows of the table) are cut off.
    """
    if can_use_kv_cache(model):
        return KVCacheDecoder(model, max_new_tokens, vocab_size)
    return SegmentMemoryDecoder(model, vocab_size) if can_use_segment_memory(model) else UncachedDecoder(model, vocab_size)


def build_seq2seq_decoder(model: Model, max_new_tokens: int, decoder_start_token_id: int) -> IncrementalDecoder:
    """The incremental decoder of a sequence-to-sequence model: an encoder-decoder, whose targets begin with
    `decoder_start_token_id`, or a prefix LM, which continues the source."""
    return (
        Seq2SeqDecoder(model, max_new_tokens, decoder_start_token_id)
        if model.decoder is not None
        else KVCacheDecoder(model, max_new_tokens, is_prefix_lm=True)
    )


def can_use_kv_cache(model: Model) -> bool:
    """Whether a model can decode with `KVCacheDecoder`: causal, embeddings of single tokens, and a cache in every mixer."""
    mixers = model.encoder.stack.mixers
    return model.config.encoder.is_causal and _has_context_free_embeddings(model) and supports_kv_cache(mixers)


def can_use_segment_memory(model: Model) -> bool:
    """Whether a model can decode with `SegmentMemoryDecoder`: causal, every layer has memory, no absolute positions."""
    encoder, mem_lens = model.config.encoder, model.encoder.stack.mem_lens
    has_memory = bool(mem_lens) and all(mem_lens)
    is_relative = encoder.position_embedding_type == "none"
    return encoder.is_causal and _has_context_free_embeddings(model) and is_relative and has_memory


def _has_context_free_embeddings(model: Model) -> bool:
    embeddings = model.config.encoder.embeddings
    return embeddings is None or isinstance(embeddings, AdaptiveInputConfig)


@dataclass(frozen=True)
class KVCacheDecoder:
    """Incremental decoder of a causal model with a KV cache.

    `is_prefix_lm` (UniLM, Dong et al. 2019): attention is bidirectional within the prompt, and generated tokens are segment B.
    """

    model: Model
    max_new_tokens: int  # at most; the cache is allocated for them
    vocab_size: int | None = None  # logits beyond it (padding rows of the table) are cut off; None: none are
    is_prefix_lm: bool = False

    def prefill(self, prompts: Sequence[Ints]) -> tuple[KVCache, Tensor]:
        input_ids, layout = _pack_prompts(self.model, prompts, self.is_prefix_lm)
        cache = KVCache.empty(
            self.model.encoder.stack.mixers, len(prompts), layout.max_seqlen + self.max_new_tokens, input_ids.device
        )
        return self._forward(Inputs(input_ids, layout, output_indices=layout.last_token, state=cache), cache)

    def decode_step(self, state: KVCache, input_ids: Tensor) -> tuple[KVCache, Tensor]:
        token_type_ids = torch.ones_like(input_ids) if self.is_prefix_lm else None
        return self._forward(Inputs(input_ids, state.next_layout(), token_type_ids, state=state), state)

    def reorder_state(self, state: KVCache, row_indices: Tensor) -> KVCache:
        return state.select_rows(row_indices)

    def _forward(self, inputs: Inputs, cache: KVCache) -> tuple[KVCache, Tensor]:
        logits = self.model.compute_logits(LM_HEAD, self.model(inputs))[:, : self.vocab_size]
        return cache.advance(inputs.layout), logits


@dataclass(frozen=True)
class SegmentMemoryDecoder:
    """Incremental decoder of Transformer-XL and Adaptive-Span models; keeps all positions, so it equals a full forward pass."""

    model: Model
    vocab_size: int | None = None  # as in `KVCacheDecoder`

    def prefill(self, prompts: Sequence[Ints]) -> tuple[SegmentMemory, Tensor]:
        input_ids, layout = _pack_prompts(self.model, prompts)
        return self._forward(input_ids, layout, SegmentMemory.empty(len(prompts), input_ids.device, keep_all=True))

    def decode_step(self, state: SegmentMemory, input_ids: Tensor) -> tuple[SegmentMemory, Tensor]:
        return self._forward(input_ids, state.next_layout(), state)

    def reorder_state(self, state: SegmentMemory, row_indices: Tensor) -> SegmentMemory:
        return state.select_rows(row_indices)

    def _forward(self, input_ids: Tensor, layout: Layout, memory: SegmentMemory) -> tuple[SegmentMemory, Tensor]:
        hidden_states = self.model(Inputs(input_ids, layout, output_indices=layout.last_token, state=memory))
        return memory.advance(layout), self.model.compute_logits(LM_HEAD, hidden_states)[:, : self.vocab_size]


@dataclass(frozen=True)
class Seq2SeqDecoder:
    """Incremental decoder of an encoder-decoder: the source is encoded once, in `prefill`."""

    model: Model
    max_new_tokens: int  # at most; the decoder's cache is allocated for them
    decoder_start_token_id: int

    def prefill(self, prompts: Sequence[Ints]) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        input_ids, layout = _pack_prompts(self.model, prompts)
        encoder_hidden_states = self.model(Inputs(input_ids, layout))
        state = self.model.decoder.init_state(encoder_hidden_states, layout, self.model.encoder, self.max_new_tokens + 1)
        return self.decode_step(state, torch.full((len(prompts),), self.decoder_start_token_id, device=input_ids.device))

    def decode_step(self, state: Any, input_ids: Tensor) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        state, hidden_states = self.model.decoder.decode_step(state, input_ids, self.model.encoder)
        return state, self.model.compute_logits(LM_HEAD, hidden_states)

    def reorder_state(self, state: Any, row_indices: Tensor) -> Any:
        assert self.model.decoder is not None
        return self.model.decoder.reorder_state(state, row_indices)


@dataclass(frozen=True)
class UncachedDecoder:
    """Incremental decoder that runs the whole text again for each token: for causal models whose mixers have no cache."""

    model: Model
    vocab_size: int | None = None  # as in `KVCacheDecoder`

    def prefill(self, prompts: Sequence[Ints]) -> tuple[list[Tensor], Tensor]:
        device = next(self.model.parameters()).device
        return self._forward([torch.as_tensor(prompt).to(device) for prompt in prompts])

    def decode_step(self, state: list[Tensor], input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        return self._forward([torch.cat([text, token[None]]) for text, token in zip(state, input_ids, strict=True)])

    def reorder_state(self, state: list[Tensor], row_indices: Tensor) -> list[Tensor]:
        return [state[row] for row in row_indices.tolist()]

    def _forward(self, texts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        layout = Layout.from_lengths([len(text) for text in texts]).to(texts[0].device)
        hidden_states = self.model(Inputs(torch.cat(texts), layout, output_indices=layout.last_token))
        return texts, self.model.compute_logits(LM_HEAD, hidden_states)[:, : self.vocab_size]


def _pack_prompts(model: Model, prompts: Sequence[Ints], is_prefix_lm: bool = False) -> tuple[Tensor, Layout]:
    """Input ids of all prompts, and their layout, on the model's device."""
    device, lengths = next(model.parameters()).device, [len(prompt) for prompt in prompts]
    input_ids = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(device)
    return input_ids, Layout.from_lengths(lengths, lengths if is_prefix_lm else None).to(device)
