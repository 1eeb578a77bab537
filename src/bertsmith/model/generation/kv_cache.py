"""Keys and values of what was read are kept, so that one more token costs one token and not the whole text again."""

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
    """(2, rows, heads, room, width of a head) for every layer, keys and values, made when the first text goes through it."""

    max_length: int  # tokens a row may have
    layers: list[Tensor] = field(default_factory=list)
    next_layer: int = 0  # the layer that is asked next

    def __next__(self) -> Tensor:
        self.next_layer += 1
        return self.layers[self.next_layer - 1]

    def select_rows(self, row_indices: Tensor) -> "KVCache":
        return KVCache(self.max_length, [layer.index_select(1, row_indices) for layer in self.layers])


@dataclass(frozen=True, kw_only=True)
class PrefillLayout(Layout):
    """Prompts of any lengths, packed as ever; what they are attended by is kept."""

    cache: KVCache

    @classmethod
    def from_layout(cls, layout: Layout, cache: KVCache) -> "PrefillLayout":
        return cls(**{one.name: getattr(layout, one.name) for one in fields(Layout)}, cache=cache)

    def attend_qkv(
        self, qkv: Tensor, num_heads: int, cos_sin: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        position_bias: PositionBias | None = None,
    ) -> Tensor:  # fmt: skip
        if cos_sin is not None:
            qkv = apply_rope(qkv, cos_sin, self.position, num_heads)
        new = qkv.unflatten(-1, (3, num_heads, -1))[:, 1:]  # (tokens, 2, heads, width of a head)
        # Zeros: what stands behind a short text is not looked at, but no number times 0 is no number.
        layer = new.new_zeros(2, self.num_sequences, num_heads, self.cache.max_length, new.shape[-1])
        layer[:, self.seq_id, :, self.position] = new
        self.cache.layers.append(layer)
        return super().attend_qkv(qkv, num_heads, None, causal, dropout, position_bias)


@dataclass(frozen=True, kw_only=True)
class DecodeLayout(Layout):
    """One more token for each text, behind what the cache holds of it; `longest` is the length it has then."""

    cache: KVCache
    same_length: bool  # all texts are of one length

    def attend_qkv(
        self, qkv: Tensor, num_heads: int, cos_sin: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        position_bias: PositionBias | None = None,
    ) -> Tensor:  # fmt: skip
        if cos_sin is not None:
            qkv = apply_rope(qkv, cos_sin, self.position, num_heads)
        qkv, layer = qkv.view(qkv.shape[0], 3, num_heads, 1, -1), next(self.cache)
        if self.same_length:
            layer[:, :, :, self.max_seqlen - 1] = qkv[:, 1:, :, 0].transpose(0, 1)
        else:
            layer[:, self.seq_id, :, self.position] = qkv[:, 1:, :, 0]
        keys, values = layer[:, :, :, : self.max_seqlen].unbind()
        seen = self.attention_mask if position_bias is None else self._bias(position_bias).to(qkv.dtype)
        return F.scaled_dot_product_attention(qkv[:, 0], keys, values, seen).flatten(1)

    def _bias(self, position_bias: PositionBias) -> Tensor:
        """(rows, heads, 1, longest): what distances add to the scores; nothing is left where a text is over."""
        added = position_bias(torch.arange(self.max_seqlen, device=self.position.device) - self.position[:, None]).transpose(
            0, 1
        )[:, :, None]
        return added if self.attention_mask is None else added.masked_fill(~self.attention_mask, float("-inf"))

    @cached_property
    def attention_mask(self) -> Tensor | None:
        """(rows, 1, 1, longest) bool: what a text has so far; None if all have as much."""
        if self.same_length:
            return None
        return (torch.arange(self.max_seqlen, device=self.position.device) <= self.position[:, None])[:, None, None]


@dataclass(frozen=True)
class CacheState:
    """How far the texts have been read."""

    cache: KVCache
    lengths: list[int]
    position: Tensor  # (rows,): where the next token stands


@dataclass(frozen=True)
class KVCacheDecoder:
    """A causal model as a stepper.

    `joint` is UniLM's way (Dong et al. 2019): a prompt sees all of itself, and what is written is segment B behind it.
    """

    model: Model
    max_new_tokens: int  # to be written at most, for which room is made at once
    vocab_size: int | None = None  # words of the table that there are; without it, all
    is_prefix_lm: bool = False

    def prefill(self, prompts: Sequence[Ints]) -> tuple[CacheState, Tensor]:
        lengths = [len(prompt) for prompt in prompts]
        cache = KVCache(max(lengths) + self.max_new_tokens)
        layout = PrefillLayout.from_layout(
            Layout.from_lengths(lengths, lengths if self.is_prefix_lm else None).to(self._device), cache
        )
        tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(self._device)
        rows = self.model(Inputs(tokens, layout, output_indices=layout.last_token))
        place = torch.tensor(lengths, device=self._device)
        return CacheState(cache, lengths, place), self.model.compute_logits(LM_HEAD, rows)[:, : self.vocab_size]

    def decode_step(self, state: CacheState, input_ids: Tensor) -> tuple[CacheState, Tensor]:
        state.cache.next_layer, count = 0, len(state.lengths)
        lengths, longest = [length + 1 for length in state.lengths], max(state.lengths) + 1
        rows = torch.arange(count, device=input_ids.device)
        layout = DecodeLayout(
            torch.ones(count), rows, rows, state.position, longest, cache=state.cache, same_length=min(lengths) == longest
        )
        hidden = self.model(Inputs(input_ids, layout, torch.ones_like(input_ids) if self.is_prefix_lm else None))
        return CacheState(state.cache, lengths, state.position + 1), self.model.compute_logits(LM_HEAD, hidden)[
            :, : self.vocab_size
        ]

    def reorder_state(self, state: CacheState, row_indices: Tensor) -> CacheState:
        kept = row_indices.tolist()
        if kept == list(range(len(state.lengths))):
            return state
        return CacheState(
            state.cache.select_rows(row_indices),
            [state.lengths[row] for row in kept],
            state.position.index_select(0, row_indices),
        )

    @property
    def _device(self) -> torch.device:
        return self.model.encoder.tokens.weight.device


@dataclass(frozen=True)
class UncachedDecoder:
    """The same by reading every text again for each token: for causal models that keep no keys and values."""

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
        rows = self.model(Inputs(torch.cat(texts), layout, output_indices=layout.last_token))
        return texts, self.model.compute_logits(LM_HEAD, rows)[:, : self.vocab_size]


def supports_segment_memory(model: Model) -> bool:
    """It can: every layer remembers, and no token needs to be told its position."""
    encoder = model.config.encoder
    alone = encoder.front is None or isinstance(encoder.front, AdaptiveInputConfig)
    mixers = model.encoder.stack.mixers
    return encoder.is_causal and alone and encoder.table is False and bool(mixers) and all(one.mem_len for one in mixers)


@dataclass(frozen=True)
class SegmentMemoryDecoder:
    """A causal model of mixer=recurrent or adaptive as a stepper: as if it read everything again, all of which it keeps."""

    model: Model
    vocab_size: int | None = None  # words of the table that there are; without it, all

    def prefill(self, prompts: Sequence[Ints]) -> tuple[SegmentMemory, Tensor]:
        device = next(self.model.parameters()).device
        tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(device)
        layout = Layout.from_lengths([len(prompt) for prompt in prompts]).to(device)
        return self._forward(tokens, layout, SegmentMemory.empty(len(prompts), device, keep_all=True))

    def decode_step(self, state: SegmentMemory, input_ids: Tensor) -> tuple[SegmentMemory, Tensor]:
        return self._forward(input_ids, Layout.from_lengths([1] * len(input_ids)).to(input_ids.device), state)

    def reorder_state(self, state: SegmentMemory, row_indices: Tensor) -> SegmentMemory:
        layers = tuple(one.index_select(0, row_indices) for one in state.layers)
        return SegmentMemory(state.num_seen.index_select(0, row_indices), layers, keep_all=True)

    def _forward(self, input_ids: Tensor, layout: Layout, memory: SegmentMemory) -> tuple[SegmentMemory, Tensor]:
        rows = self.model(Inputs(input_ids, layout, output_indices=layout.last_token, memory=memory))
        return memory.advance(layout), self.model.compute_logits(LM_HEAD, rows)[:, : self.vocab_size]
