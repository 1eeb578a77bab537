"""Lite Transformer (Wu et al. 2020): Long-Short Range Attention.

Half of the channels go through self-attention, the other half through a lightweight or dynamic convolution.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import PosFloat, PosInt, Probability
from ...errors import UserError
from ..kv_cache import LayerCache, LayerKVCache
from ..linear import Linear
from ..packing import Layout
from ..segment_memory import last_positions
from .attention import Attention, SelfAttention
from .base import BaseMixerConfig, LayerState, Mixer


class LiteTransformer(BaseMixerConfig, frozen=True, tag="lite-transformer"):
    """Lite Transformer (Wu et al. 2020): attention for half of the channels, convolution for the other half.

    Each layer has its own kernel size.
    """

    num_attention_heads: Annotated[PosInt, "number of attention heads, in the attention half of the channels"] = 4
    kernel_sizes: Annotated[
        tuple[PosInt, ...],
        Meta(min_length=1),
        "kernel size of the convolution, one for each layer; the last is repeated for layers above",
    ] = (3, 7, 15, 31)
    num_filters: Annotated[PosInt, "convolution heads: channels of a head share one kernel"] = 4
    dynamic: Annotated[bool, "dynamic convolution: kernels predicted from each token; else lightweight, fixed kernels"] = False
    causal: Annotated[bool, "attend only to earlier tokens (left to right)"] = False
    attention_dropout: Annotated[Probability, "dropout on attention weights and on convolution kernels (DropConnect)"] = 0.0
    bias: Annotated[bool, "bias terms in the linear layers"] = True
    rope_theta: Annotated[
        PosFloat | None, "base of RoPE in the attention half, such as 10000; with model.position_embedding_type=none"
    ] = None

    def for_layer(self, layer: int, num_layers: int) -> "LiteTransformer":
        """The config of one layer, with its kernel size."""
        return msgspec.structs.replace(self, kernel_sizes=(self.kernel_sizes[min(layer, len(self.kernel_sizes) - 1)],))

    def build(self, hidden_size: int) -> Mixer:
        return LongShortRangeAttention(msgspec.structs.replace(self, kernel_sizes=self.kernel_sizes[:1]), hidden_size)


class LongShortRangeAttention(Mixer):
    """Channels [0, half) through self-attention (`attention`), [half, hidden_size) through the convolution (`convolution`)."""

    def __init__(self, config: LiteTransformer, hidden_size: int) -> None:
        super().__init__()
        half = hidden_size // 2
        if hidden_size % 2 or half % config.num_filters:
            raise UserError(
                f"half of a hidden_size of {hidden_size} does not divide into {config.num_filters} filters; "
                "change model.hidden_size or model.mixer.num_filters"
            )
        attention_config = Attention(
            num_attention_heads=config.num_attention_heads,
            causal=config.causal,
            attention_dropout=config.attention_dropout,
            bias=config.bias,
            rope_theta=config.rope_theta,
        )
        self.attention, self.convolution = SelfAttention(attention_config, half), LightweightConv(config, half)

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        assert state is None or isinstance(state, LongShortRangeCache)
        kv_cache, conv_cache = (None, None) if state is None else (state.attention, state.convolution)
        long_range, short_range = x.chunk(2, -1)
        return torch.cat([self.attention(long_range, layout, kv_cache), self.convolution(short_range, layout, conv_cache)], -1)

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        """Of the attention half."""
        return self.attention.attention_weights(x.chunk(2, -1)[0], layout)

    def build_cache(self, max_length: int) -> "LongShortRangeCache":
        return LongShortRangeCache(self.attention.build_cache(max_length), ConvCache())


class ConvCache(LayerCache):
    """The last inputs of a causal convolution."""

    def __init__(self, window: Tensor | None = None) -> None:
        self.window = window  # (rows, kernel_size - 1, channels), oldest first, zeros before the text; None before the first

    def select_rows(self, row_indices: Tensor) -> "ConvCache":
        return ConvCache(None if self.window is None else self.window.index_select(0, row_indices))


@dataclass(frozen=True)
class LongShortRangeCache(LayerCache):
    """KV cache of the attention half, and the last inputs of the convolution."""

    attention: LayerKVCache
    convolution: ConvCache

    def select_rows(self, row_indices: Tensor) -> "LongShortRangeCache":
        return LongShortRangeCache(self.attention.select_rows(row_indices), self.convolution.select_rows(row_indices))


class LightweightConv(nn.Module):
    """Lightweight or dynamic convolution (Wu et al. 2019): GLU, depthwise convolution, output projection.

    The kernels are normalized by softmax and shared by the channels of a filter; dynamic ones are predicted from each token.
    """

    def __init__(self, config: LiteTransformer, hidden_size: int) -> None:
        super().__init__()
        (self.kernel_size,), self.num_filters, self.dropout = config.kernel_sizes, config.num_filters, config.attention_dropout
        self.left_padding = self.kernel_size - 1 if config.causal else self.kernel_size // 2
        self.glu, self.output = (
            Linear(hidden_size, 2 * hidden_size, bias=config.bias, num_parts=2),
            Linear(hidden_size, hidden_size, bias=config.bias),
        )
        self.kernel = None if config.dynamic else nn.Parameter(torch.zeros(config.num_filters, self.kernel_size))
        self.kernel_projection = (
            Linear(hidden_size, config.num_filters * self.kernel_size, bias=False) if config.dynamic else None
        )

    def forward(self, x: Tensor, layout: Layout, cache: ConvCache | None = None) -> Tensor:
        x = F.glu(self.glu(x))
        if cache is not None:
            return self.output(self._continue(x, layout, cache))
        is_same_seq = (
            _pad(layout.seq_id, self.left_padding, self.kernel_size, -1).unfold(0, self.kernel_size, 1)
            == layout.seq_id[:, None]
        )
        weights = self._kernel_weights(x) * is_same_seq[:, None].to(x.dtype)  # zero padding at sequence boundaries
        out: Tensor = _LightweightConvFunction.apply(x.unflatten(-1, (self.num_filters, -1)), weights, self.left_padding)
        return self.output(out.flatten(1))

    def _continue(self, x: Tensor, layout: Layout, cache: ConvCache) -> Tensor:
        """The causal convolution of x (tokens, channels), which follows the inputs in the cache; these are added to it."""
        if cache.window is None:
            cache.window = x.new_zeros(layout.num_sequences, self.kernel_size - 1, x.shape[1])
        inputs = torch.cat([cache.window, layout.pad(x)], 1)
        windows = layout.unpad(inputs.unfold(1, self.kernel_size, 1)).unflatten(1, (self.num_filters, -1))
        cache.window = last_positions(x, layout, cache.window, self.kernel_size - 1)
        return (windows * self._kernel_weights(x)[:, :, None]).sum(-1).flatten(1)

    def _kernel_weights(self, x: Tensor) -> Tensor:
        """(tokens, num_filters, kernel_size), or (1, ...) if not dynamic: they add up to 1 over the kernel."""
        if self.kernel_projection is not None:
            scores = self.kernel_projection(x).unflatten(-1, (self.num_filters, -1))
        else:
            scores = self.kernel[None]  # type: ignore[index]
        return F.dropout(scores.float().softmax(-1).to(x.dtype), self.dropout, self.training)


class _LightweightConvFunction(torch.autograd.Function):
    """Convolution offset by offset, so that nothing much larger than the input is created or saved. Sums in float32.

    x: (tokens, filters, channels); weights: (tokens or 1, filters, kernel_size). Returns the shape of x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, left_padding: int) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.left_padding = left_padding
        padded, out = _pad(x, left_padding, weights.shape[-1]), x.new_zeros(x.shape, dtype=_accumulation_dtype(x))
        for offset in range(weights.shape[-1]):
            out.addcmul_(padded[offset : offset + x.shape[0]], weights[..., offset, None])
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weights = ctx.saved_tensors
        padded = _pad(x, ctx.left_padding, weights.shape[-1])
        grad_padded, grad_weights = torch.zeros_like(padded, dtype=_accumulation_dtype(x)), []
        for offset in range(weights.shape[-1]):
            window = slice(offset, offset + x.shape[0])
            grad_weights.append((grad_out * padded[window]).sum(-1))
            grad_padded[window].addcmul_(grad_out, weights[..., offset, None])
        return grad_padded[ctx.left_padding : ctx.left_padding + x.shape[0]].to(x.dtype), torch.stack(grad_weights, -1), None


def _accumulation_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _pad(x: Tensor, left_padding: int, kernel_size: int, pad_value: float = 0.0) -> Tensor:
    return F.pad(x, (0, 0) * (x.ndim - 1) + (left_padding, kernel_size - 1 - left_padding), value=pad_value)
