"""Inputs of a model: sequences packed without padding."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..device import copy_to_device
from .kv_cache import KVCache
from .packing import Layout
from .segment_memory import SegmentMemory


@dataclass(frozen=True)
class Inputs:
    """Sequences packed without padding; `layout` says where each of them begins and ends."""

    input_ids: Tensor  # (tokens,) int64: all sequences, concatenated
    layout: Layout
    token_type_ids: Tensor | None = None  # (tokens,): segment id, 0 (A) or 1 (B)
    embedding_delta: Tensor | None = None  # (tokens, embedding_dim): added to the embeddings before LayerNorm
    output_indices: Tensor | None = None  # (rows,): tokens whose hidden states are returned; None: all of them
    # of the text before: hidden states of preceding segments (Transformer-XL), or the KV cache of incremental decoding
    state: SegmentMemory | KVCache | None = None

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: Any) -> "Inputs":
        optional_tensors = {
            "token_type_ids": self.token_type_ids,
            "embedding_delta": self.embedding_delta,
            "output_indices": self.output_indices,
        }
        moved_tensors: dict[str, Any] = {
            name: copy_to_device(tensor, device) for name, tensor in optional_tensors.items() if tensor is not None
        }
        state = self.state.to(device) if isinstance(self.state, SegmentMemory) else self.state  # a cache is on its device
        input_ids, layout = copy_to_device(self.input_ids, device), self.layout.to(device)
        return replace(self, input_ids=input_ids, layout=layout, state=state, **moved_tensors)
