"""KV cache: keys and values of the tokens before, so that each new token is computed alone in incremental decoding.

`KVCache` holds one `LayerCache` for each layer. The stack hands it to that layer's mixer as `state`, and the mixer writes the
new tokens into it: `LayerKVCache` for attention; another mixer may keep something else (`Mixer.build_cache`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .packing import Layout
from .positions import apply_rope

if TYPE_CHECKING:
    from .mixers import Mixer
    from .position_bias import PositionBias


class LayerCache(ABC):
    """What one layer keeps of the tokens before, one row for each sequence; its mixer updates it in place."""

    @abstractmethod
    def select_rows(self, row_indices: Tensor) -> Self:
        """A copy with the rows `row_indices`, which may drop and repeat rows."""


class LayerKVCache(LayerCache):
    """Keys and values of one attention layer, allocated for `max_length` tokens when the first are written."""

    def __init__(self, max_length: int, keys_values: Tensor | None = None) -> None:
        self.max_length = max_length
        self.keys_values = keys_values  # (2, rows, heads, max_length, head_dim); None before the first tokens

    def select_rows(self, row_indices: Tensor) -> "LayerKVCache":
        keys_values = None if self.keys_values is None else self.keys_values.index_select(1, row_indices)
        return LayerKVCache(self.max_length, keys_values)

    def attend_qkv(
        self, qkv: Tensor, layout: Layout, num_heads: int, cos_sin: Tensor | None = None, causal: bool = True,
        position_bias: "PositionBias | None" = None,
    ) -> Tensor:  # fmt: skip
        """`Layout.attend_qkv` of tokens that follow the cached ones (`layout.past_lengths`); stores their keys and values.

        The first tokens of sequences (no past) attend as in `layout`; later ones are causal.
        """
        if cos_sin is not None:
            qkv = apply_rope(qkv, cos_sin, layout.position, num_heads)
        qkv = qkv.unflatten(-1, (3, num_heads, -1))
        self._write(qkv[:, 1:], layout)
        if layout.past_lengths is None:
            return layout.attend_qkv(qkv.flatten(1), num_heads, None, causal, 0.0, position_bias)
        assert causal and self.keys_values is not None and layout.prefix_lengths is None
        keys, values = self.keys_values[:, :, :, : layout.num_positions].unbind()
        mask = _causal_mask(layout) if position_bias is None else _masked_bias(layout, position_bias).to(qkv.dtype)
        if layout.max_seqlen == 1:  # one token of each sequence is a padded batch as it is
            return F.scaled_dot_product_attention(qkv[:, 0, :, None], keys, values, mask).flatten(1)
        out = F.scaled_dot_product_attention(layout.pad(qkv[:, 0]).transpose(1, 2), keys, values, mask)
        return layout.unpad(out.transpose(1, 2)).flatten(1)

    def extend(self, keys_values: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Store (tokens, 2, heads, head_dim); all keys and all values so far, (sequences, heads, num_positions, head_dim)."""
        self._write(keys_values, layout)
        assert self.keys_values is not None
        keys, values = self.keys_values[:, :, :, : layout.num_positions].unbind()
        return keys, values

    def _write(self, keys_values: Tensor, layout: Layout) -> None:
        """Store keys and values, (tokens, 2, heads, head_dim), at the positions of `layout`."""
        if self.keys_values is None:
            # Zeros, not empty: positions behind a short text have weight 0, and 0 * nan would be nan.
            shape = (2, layout.num_sequences, keys_values.shape[2], self.max_length, keys_values.shape[3])
            self.keys_values = keys_values.new_zeros(shape)
        if layout.is_aligned:
            first, end = layout.num_positions - layout.max_seqlen, layout.num_positions
            self.keys_values[:, :, :, first:end] = layout.pad(keys_values).permute(2, 0, 3, 1, 4)
        else:
            self.keys_values[:, layout.seq_id, :, layout.position] = keys_values


def _causal_mask(layout: Layout) -> Tensor | None:
    """(sequences, 1, max_seqlen, num_positions) bool: positions up to the token's own; None if that is all of them."""
    if layout.is_aligned and layout.max_seqlen == 1:
        return None

    def compute() -> Tensor:
        key_position = torch.arange(layout.num_positions, device=layout.position.device)
        return (key_position <= layout.pad(layout.position)[..., None])[:, None]

    mask: Tensor = layout.memoize("kv_cache_mask", compute)
    return mask


def _masked_bias(layout: Layout, position_bias: "PositionBias") -> Tensor:
    """(sequences or 1, heads, max_seqlen, num_positions): position bias of the scores, -inf behind the token's own position."""
    query_position = layout.pad(layout.position)[: 1 if layout.is_aligned else None]
    key_position = torch.arange(layout.num_positions, device=query_position.device)
    bias, mask = position_bias(key_position - query_position[..., None]).transpose(0, 1), _causal_mask(layout)
    return bias if mask is None else bias.masked_fill(~mask[: len(bias)], float("-inf"))


@dataclass(frozen=True)
class KVCache:
    """Caches of all layers and the number of tokens in them, one row for each sequence.

    A forward pass writes its tokens into `layers`; `advance` then counts them.
    """

    layers: tuple[LayerCache, ...]
    lengths: Tensor  # (rows,) int64, on the CPU
    next_position: Tensor  # (rows,): the same on the device

    @classmethod
    def empty(cls, mixers: Iterable["Mixer"], num_rows: int, max_length: int, device: torch.device) -> "KVCache":
        """For `num_rows` sequences of at most `max_length` tokens; every mixer must have a cache (`supports_kv_cache`)."""
        caches = [mixer.build_cache(max_length) for mixer in mixers]
        layers = tuple(cache for cache in caches if cache is not None)
        assert len(layers) == len(caches)
        return cls(layers, torch.zeros(num_rows, dtype=torch.int64), torch.zeros(num_rows, dtype=torch.int64, device=device))

    def get_layer(self, layer: int) -> LayerCache:
        return self.layers[layer]

    def next_layout(self) -> Layout:
        """Layout of one new token for each row."""
        return Layout.next_tokens(self.lengths, self.next_position)

    def advance(self, layout: Layout) -> "KVCache":
        """The cache after the tokens of `layout`."""
        return replace(self, lengths=self.lengths + layout.lengths, next_position=self.next_position + layout.cu_seqlens.diff())

    def select_rows(self, row_indices: Tensor) -> "KVCache":
        """With the rows `row_indices`; unchanged if these are all rows in order."""
        rows = row_indices.cpu()
        if torch.equal(rows, torch.arange(len(self.lengths))):
            return self
        layers = tuple(cache.select_rows(row_indices) for cache in self.layers)
        return KVCache(layers, self.lengths[rows], self.next_position.index_select(0, row_indices))


def supports_kv_cache(mixers: Iterable["Mixer"]) -> bool:
    """Whether every layer's mixer can decode incrementally with a cache."""
    return all(mixer.build_cache(1) is not None for mixer in mixers)
