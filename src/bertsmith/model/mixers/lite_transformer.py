"""Lite Transformer (Wu et al. 2020): half of the channels attend to the whole text, half are filtered among neighbours."""

from typing import Annotated, Any

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import PosFloat, PosInt, Probability, Variant
from ...errors import UserError
from ..packing import Layout
from .attention import Attention, LayerCache, SelfAttention
from .base import Mixer


class LiteTransformer(Variant, frozen=True, tag="long-short"):
    heads: Annotated[PosInt, "attention heads of the first half"] = 4
    kernels: Annotated[
        tuple[PosInt, ...],
        Meta(min_length=1),
        "tokens that filters of the second half see, layer by layer; the last: in all above",
    ] = (3, 7, 15, 31)
    filters: Annotated[PosInt, "filters of the second half; channels are shared among them"] = 4
    dynamic: Annotated[bool, "every token makes its own filters; else they are learnt, and the same for all"] = False
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[Probability, "on attention weights, and on weights of filters"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = True
    rotary: Annotated[PosFloat | None, "longest period of rotary positions of the first half; with model.table=false"] = None

    def for_layer(self, layer_idx: int, num_layers: int) -> "LiteTransformer":
        """That of one layer."""
        return msgspec.structs.replace(self, kernels=(self.kernels[min(layer_idx, len(self.kernels) - 1)],))

    def build(self, hidden_size: int) -> Mixer:
        return LongShortRangeAttention(msgspec.structs.replace(self, kernels=self.kernels[:1]), hidden_size)


class LongShortRangeAttention(Mixer):
    def __init__(self, config: LiteTransformer, hidden_size: int) -> None:
        super().__init__()
        half = hidden_size // 2
        if hidden_size % 2 or half % config.filters:
            raise UserError(f"half of a width of {hidden_size} does not divide into {config.filters} filters; change model.width, or "
                           "model.mixer.filters")  # fmt: skip
        dense = Attention(
            heads=config.heads, causal=config.causal, dropout=config.dropout, bias=config.bias, rotary=config.rotary
        )
        self.far, self.near = SelfAttention(dense, half), LightweightConv(config, half)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        far, near = x.chunk(2, -1)
        return torch.cat([self.far(far, layout), self.near(near, layout)], -1)

    def decode_step(self, x: Tensor, cache: LayerCache | None, position: int) -> tuple[Tensor, LayerCache]:
        """(rows, width): of one more token a text, at its place, and what it leaves for the next."""
        far, near = x.chunk(2, -1)
        seen, kept = self.far.decode_step(far, None if cache is None else cache[:2], position)
        filtered, last = self.near.decode_step(near, None if cache is None else cache[2])
        return torch.cat([seen, filtered], -1), (*kept, last)


class LightweightConv(nn.Module):
    """Wu et al. 2019: a gate, a weighted mean of neighbours whose weights all channels of a filter share, and a matrix."""

    def __init__(self, config: LiteTransformer, hidden_size: int) -> None:
        super().__init__()
        (self.kernel_size,), self.num_filters, self.dropout = config.kernels, config.filters, config.dropout
        self.left_padding = self.kernel_size - 1 if config.causal else self.kernel_size // 2
        self.gate, self.out = (
            nn.Linear(hidden_size, 2 * hidden_size, bias=config.bias),
            nn.Linear(hidden_size, hidden_size, bias=config.bias),
        )
        self.gate.weight.parts = 2  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.kernel = None if config.dynamic else nn.Parameter(torch.zeros(config.filters, self.kernel_size))
        self.made = nn.Linear(hidden_size, config.filters * self.kernel_size, bias=False) if config.dynamic else None

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        x = F.glu(self.gate(x))
        inside = (
            _pad(layout.seq_id, self.left_padding, self.kernel_size, -1).unfold(0, self.kernel_size, 1)
            == layout.seq_id[:, None]
        )
        weights = self._kernel_weights(x) * inside[:, None].to(x.dtype)  # beyond the ends of a text there is nothing
        mixed: Tensor = _LightweightConvFunction.apply(x.unflatten(-1, (self.num_filters, -1)), weights, self.left_padding)
        return self.out(mixed.flatten(1))

    def decode_step(self, x: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of one more token a text, behind the last that a causal filter sees: (rows, tokens, width)."""
        x = F.glu(self.gate(x))
        seen = x[:, None] if cache is None else torch.cat([cache, x[:, None]], 1)[:, -self.kernel_size :]
        weights = self._kernel_weights(x)[..., self.kernel_size - seen.shape[1] :]
        mixed = (seen.unflatten(-1, (self.num_filters, -1)) * weights.transpose(1, 2)[..., None]).sum(1)
        return self.out(mixed.flatten(1)), seen

    def _kernel_weights(self, x: Tensor) -> Tensor:
        """(tokens, filters, tokens seen), or one row for all tokens: they add up to 1."""
        scores = self.kernel[None] if self.made is None else self.made(x).unflatten(-1, (self.num_filters, -1))  # type: ignore[index]
        return F.dropout(scores.float().softmax(-1).to(x.dtype), self.dropout, self.training)


class _LightweightConvFunction(torch.autograd.Function):
    """Offset by offset, there and back: nothing much larger than what is read is made or kept. Summed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, left_padding: int) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.before = left_padding
        around, out = _pad(x, left_padding, weights.shape[-1]), x.new_zeros(x.shape, dtype=_accumulation_dtype(x))
        for offset in range(weights.shape[-1]):
            out.addcmul_(around[offset : offset + x.shape[0]], weights[..., offset, None])
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weights = ctx.saved_tensors
        around = _pad(x, ctx.before, weights.shape[-1])
        down, slopes = torch.zeros_like(around, dtype=_accumulation_dtype(x)), []
        for offset in range(weights.shape[-1]):
            here = slice(offset, offset + x.shape[0])
            slopes.append((grad_out * around[here]).sum(-1))
            down[here].addcmul_(grad_out, weights[..., offset, None])
        return down[ctx.before : ctx.before + x.shape[0]].to(x.dtype), torch.stack(slopes, -1), None


def _accumulation_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _pad(x: Tensor, left_padding: int, kernel_size: int, pad_value: float = 0.0) -> Tensor:
    return F.pad(x, (0, 0) * (x.ndim - 1) + (left_padding, kernel_size - 1 - left_padding), value=pad_value)
