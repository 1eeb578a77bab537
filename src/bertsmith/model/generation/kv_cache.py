"""Incremental decoding of causal language models: with a KV cache, with segment memory, or without a cache.

`KVCacheDecoder`, `SegmentMemoryDecoder` (Transformer-XL, Adaptive-Span) and `UncachedDecoder` implement the
`IncrementalDecoder` protocol of `search`. The cache is filled and read by layouts whose `attend_qkv` stores keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Inputs
from ..embeddings import AdaptiveInputConfig
from ..heads import LM_HEAD
from ..model import Model
from ..packing import Layout
from ..position_bias import PositionBias
from ..positions import apply_rope
from ..segment_memory import SegmentMemory
from .search import Ints


@dataclass
class KVCache:
    """Keys and values (2, rows, heads, max_length, head_dim) of every layer, allocated by the prefill pass."""

    max_length: int  # most tokens of a row
    layers: list[Tensor] = field(default_factory=list)
    next_layer: int = 0  # layer that reads the cache next in a decoding step

    def __next__(self) -> Tensor:
        self.next_layer += 1
        return self.layers[self.next_layer - 1]

    def select_rows(self, row_indices: Tensor) -> "KVCache":
        return KVCache(self.max_length, [layer.index_select(1, row_indices) for layer in self.layers])


@dataclass(frozen=True, kw_only=True)
class PrefillLayout(Layout):
    """Layout of packed prompts whose attention stores keys and values in the cache."""

    cache: KVCache

    @classmethod
    def from_layout(cls, layout: Layout, cache: KVCache) -> "PrefillLayout":
        return cls(**{spec.name: getattr(layout, spec.name) for spec in fields(Layout)}, cache=cache)

    def attend_qkv(
        self, qkv: Tensor, num_heads: int, cos_sin: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        position_bias: PositionBias | None = None,
    ) -> Tensor:  # fmt: skip
        if cos_sin is not None:
            qkv = apply_rope(qkv, cos_sin, self.position, num_heads)
        kv = qkv.unflatten(-1, (3, num_heads, -1))[:, 1:]  # (tokens, 2, heads, head_dim)
        # Zeros, not empty: positions behind a short text have weight 0, and 0 * nan would be nan.
        layer_cache = kv.new_zeros(2, self.num_sequences, num_heads, self.cache.max_length, kv.shape[-1])
        layer_cache[:, self.seq_id, :, self.position] = kv
        self.cache.layers.append(layer_cache)
        return super().attend_qkv(qkv, num_heads, None, causal, dropout, position_bias)


@dataclass(frozen=True, kw_only=True)
class DecodeLayout(Layout):
    """Layout of one new token for each row, attending to its cache; `max_seqlen` is the longest length including that token."""

    cache: KVCache
    same_length: bool  # all rows have the same length

    def attend_qkv(
        self, qkv: Tensor, num_heads: int, cos_sin: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        position_bias: PositionBias | None = None,
    ) -> Tensor:  # fmt: skip
        if cos_sin is not None:
            qkv = apply_rope(qkv, cos_sin, self.position, num_heads)
        qkv, layer_cache = qkv.view(qkv.shape[0], 3, num_heads, 1, -1), next(self.cache)
        if self.same_length:
            layer_cache[:, :, :, self.max_seqlen - 1] = qkv[:, 1:, :, 0].transpose(0, 1)
        else:
            layer_cache[:, self.seq_id, :, self.position] = qkv[:, 1:, :, 0]
        keys, values = layer_cache[:, :, :, : self.max_seqlen].unbind()
        mask = self.attention_mask if position_bias is None else self._bias(position_bias).to(qkv.dtype)
        return F.scaled_dot_product_attention(qkv[:, 0], keys, values, mask).flatten(1)

    def _bias(self, position_bias: PositionBias) -> Tensor:
        """(rows, heads, 1, max_seqlen): position bias of the scores, -inf behind the end of a row."""
        bias = position_bias(torch.arange(self.max_seqlen, device=self.position.device) - self.position[:, None]).transpose(
            0, 1
        )[:, :, None]
        return bias if self.attention_mask is None else bias.masked_fill(~self.attention_mask, float("-inf"))

    @cached_property
    def attention_mask(self) -> Tensor | None:
        """(rows, 1, 1, max_seqlen) bool: valid positions; None if all rows have the same length."""
        if self.same_length:
            return None
        return (torch.arange(self.max_seqlen, device=self.position.device) <= self.position[:, None])[:, None, None]


@dataclass(frozen=True)
class CacheState:
    """Decoding state: the cache and the length of each row."""

    cache: KVCache
    lengths: list[int]
    position: Tensor  # (rows,): position of the next token


@dataclass(frozen=True)
class KVCacheDecoder:
    """Incremental decoder of a causal model with a KV cache.

    `is_prefix_lm` (UniLM, Dong et al. 2019): attention is bidirectional within the prompt, and generated tokens are segment B.
    """

    model: Model
    max_new_tokens: int  # at most; the cache is allocated for them
    vocab_size: int | None = None  # logits beyond it (padding rows of the table) are cut off; None: none are
    is_prefix_lm: bool = False

    def prefill(self, prompts: Sequence[Ints]) -> tuple[CacheState, Tensor]:
        lengths = [len(prompt) for prompt in prompts]
        cache = KVCache(max(lengths) + self.max_new_tokens)
        layout = PrefillLayout.from_layout(
            Layout.from_lengths(lengths, lengths if self.is_prefix_lm else None).to(self._device), cache
        )
        input_ids = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(self._device)
        hidden_states = self.model(Inputs(input_ids, layout, output_indices=layout.last_token))
        position = torch.tensor(lengths, device=self._device)
        return CacheState(cache, lengths, position), self.model.compute_logits(LM_HEAD, hidden_states)[:, : self.vocab_size]

    def decode_step(self, state: CacheState, input_ids: Tensor) -> tuple[CacheState, Tensor]:
        state.cache.next_layer, num_rows = 0, len(state.lengths)
        lengths, max_length = [length + 1 for length in state.lengths], max(state.lengths) + 1
        rows = torch.arange(num_rows, device=input_ids.device)
        layout = DecodeLayout(
            torch.ones(num_rows),
            rows,
            rows,
            state.position,
            max_length,
            cache=state.cache,
            same_length=min(lengths) == max_length,
        )
        hidden_states = self.model(Inputs(input_ids, layout, torch.ones_like(input_ids) if self.is_prefix_lm else None))
        return CacheState(state.cache, lengths, state.position + 1), self.model.compute_logits(LM_HEAD, hidden_states)[
            :, : self.vocab_size
        ]

    def reorder_state(self, state: CacheState, row_indices: Tensor) -> CacheState:
        rows = row_indices.tolist()
        if rows == list(range(len(state.lengths))):
            return state
        return CacheState(
            state.cache.select_rows(row_indices),
            [state.lengths[row] for row in rows],
            state.position.index_select(0, row_indices),
        )

    @property
    def _device(self) -> torch.device:
        return self.model.encoder.word_embeddings.weight.device


@dataclass(frozen=True)
class UncachedDecoder:
    """Incremental decoder that runs the whole text again for each token: for causal models without a KV cache."""

    model: Model
    vocab_size: int | None = None

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


def supports_segment_memory(model: Model) -> bool:
    """Whether the model can decode with `SegmentMemoryDecoder`: causal, every layer has memory, no absolute positions."""
    encoder = model.config.encoder
    is_context_free = encoder.embeddings is None or isinstance(encoder.embeddings, AdaptiveInputConfig)
    mem_lens = model.encoder.stack.mem_lens
    return (
        encoder.is_causal and is_context_free and encoder.position_embedding_type == "none" and bool(mem_lens) and all(mem_lens)
    )


@dataclass(frozen=True)
class SegmentMemoryDecoder:
    """Incremental decoder of Transformer-XL and Adaptive-Span models; keeps all positions, so it equals a full forward pass."""

    model: Model
    vocab_size: int | None = None  # logits beyond it (padding rows of the table) are cut off; None: none are

    def prefill(self, prompts: Sequence[Ints]) -> tuple[SegmentMemory, Tensor]:
        device = next(self.model.parameters()).device
        input_ids = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(device)
        layout = Layout.from_lengths([len(prompt) for prompt in prompts]).to(device)
        return self._forward(input_ids, layout, SegmentMemory.empty(len(prompts), device, keep_all=True))

    def decode_step(self, state: SegmentMemory, input_ids: Tensor) -> tuple[SegmentMemory, Tensor]:
        return self._forward(input_ids, Layout.from_lengths([1] * len(input_ids)).to(input_ids.device), state)

    def reorder_state(self, state: SegmentMemory, row_indices: Tensor) -> SegmentMemory:
        layers = tuple(states.index_select(0, row_indices) for states in state.layers)
        return SegmentMemory(state.num_seen.index_select(0, row_indices), layers, keep_all=True)

    def _forward(self, input_ids: Tensor, layout: Layout, memory: SegmentMemory) -> tuple[SegmentMemory, Tensor]:
        hidden_states = self.model(Inputs(input_ids, layout, output_indices=layout.last_token, memory=memory))
        return memory.advance(layout), self.model.compute_logits(LM_HEAD, hidden_states)[:, : self.vocab_size]
