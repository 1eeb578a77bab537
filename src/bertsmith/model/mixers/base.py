"""The interface of token mixers (attention, RNN, convolution), and the fused query, key and value projection."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch.nn.functional as F
from torch import Tensor, nn

from ...config import Variant
from ...errors import UserError
from ..kv_cache import LayerCache
from ..linear import Linear
from ..packing import Layout
from ..segment_memory import LayerMemory

LayerState = LayerMemory | LayerCache  # what a layer gets of the tokens before these: segment memory, or a cache for decoding


class BaseMixerConfig(Variant, frozen=True):
    """Config of a mixer: a member of the union `MixerConfig`."""

    @property
    def needs_streams(self) -> bool:
        """Whether it keeps a memory that has an effect only if batches continue the text of the batch before."""
        return False

    def for_layer(self, layer: int, num_layers: int) -> Self:
        """The config of one layer, where layers differ."""
        return self

    def build(self, hidden_size: int) -> "Mixer":
        raise NotImplementedError

    def tie_weights(self, mixer: "Mixer", first_mixer: "Mixer") -> None:
        """Make `mixer`, built from this config, use the first layer's parameters where all layers share them."""


class Mixer(nn.Module, ABC):
    """Token-mixing sublayer: (tokens, hidden_size) in, the same shape out.

    The output of a token depends on tokens of its own sequence only, however sequences are packed.
    """

    can_compile: ClassVar[bool] = True  # whether torch.compile captures it as one graph

    @abstractmethod
    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        """`state`: what the layer has of the text before these sequences.

        A `MemoryMixer` reads its `LayerMemory`; a mixer with `build_cache` reads that cache and writes these tokens into it.
        """

    def build_cache(self, max_length: int) -> LayerCache | None:
        """Empty cache for incremental decoding of sequences of at most `max_length` tokens.

        None: there is no such cache, and generation runs the whole text again for each token.
        """
        return None

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        """(sequences, heads, max_seqlen, max_seqlen) float32: how much each query (row) attends to each key (column).

        What `forward` multiplies with the values, computed densely, without dropout. Rows of padding are undefined.
        """
        raise UserError(
            f"{type(self).__name__} computes no attention weights between tokens; mixer=attention, transformer-xl, "
            "adaptive-span, longformer, reformer and lite-transformer do"
        )

    def aux_loss(self) -> Tensor | float:
        """Regularization term, added to the loss of every objective."""
        return 0.0


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax in float32 over the last dimension, where `mask` is True; 0 elsewhere."""
    return scores.float().masked_fill(~mask, float("-inf")).softmax(-1)


class MemoryMixer(Mixer):
    """A mixer that attends to its inputs at the positions before each sequence, its segment memory, given as `state`."""

    @property
    @abstractmethod
    def mem_len(self) -> int:
        """Past positions that are kept for the next segments."""

    @property
    @abstractmethod
    def max_past_len(self) -> int | None:
        """How many past positions it can attend to; None: no limit."""


class QKVProjection(nn.Module):
    """Query, key and value projections of multi-head attention in one matrix, and the output projection.

    (tokens, hidden_size) -> three of (tokens, num_heads, head_dim); `project_out` back. head_dim is hidden_size / num_heads
    unless it is given, as in a model whose heads were pruned.
    """

    def __init__(self, hidden_size: int, num_heads: int, bias: bool = True, head_dim: int | None = None) -> None:
        super().__init__()
        if head_dim is None and hidden_size % num_heads:
            raise UserError(
                f"a hidden_size of {hidden_size} does not divide into {num_heads} heads; "
                f"try model.mixer.num_attention_heads={max(1, hidden_size // 64)}"
            )
        self.num_heads, inner_size = num_heads, num_heads * (head_dim or hidden_size // num_heads)
        self.qkv, self.output = (
            Linear(hidden_size, 3 * inner_size, bias=bias, num_parts=3),
            Linear(inner_size, hidden_size, bias=bias),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        return q, k, v

    def project_kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values only, of tokens that are attended to but have no queries: (tokens, num_heads, head_dim) each."""
        if not isinstance(self.qkv, nn.Linear):  # wrapped by LoRA: its weight alone is not the projection
            return self(x)[1:]
        inner_size = self.qkv.out_features // 3
        bias = None if self.qkv.bias is None else self.qkv.bias[inner_size:]
        k, v = F.linear(x, self.qkv.weight[inner_size:], bias).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        return k, v

    def project_out(self, x: Tensor) -> Tensor:
        """(tokens, num_heads, head_dim) -> (tokens, hidden_size)"""
        return self.output(x.flatten(-2))
