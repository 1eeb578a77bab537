"""Lite Transformer (Wu et al. 2020): half of the channels attend to the whole text, half are filtered among neighbours."""

from typing import Annotated, Any

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import Chance, Count, Positive, Variant
from ...errors import BadInput
from ..packing import Layout
from .attention import Dense, DenseAttention, Past
from .base import Mixer


class LongShort(Variant, frozen=True):
    heads: Annotated[Count, "attention heads of the first half"] = 4
    kernels: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        "tokens that filters of the second half see, layer by layer; the last: in all above",
    ] = (3, 7, 15, 31)
    filters: Annotated[Count, "filters of the second half; channels are shared among them"] = 4
    dynamic: Annotated[bool, "every token makes its own filters; else they are learnt, and the same for all"] = False
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[Chance, "on attention weights, and on weights of filters"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = True
    rotary: Annotated[Positive | None, "longest period of rotary positions of the first half; with model.table=false"] = None

    def at(self, layer: int, layers: int) -> "LongShort":
        """That of one layer."""
        return msgspec.structs.replace(self, kernels=(self.kernels[min(layer, len(self.kernels) - 1)],))

    def build(self, width: int) -> Mixer:
        return LongShortMixer(msgspec.structs.replace(self, kernels=self.kernels[:1]), width)


class LongShortMixer(Mixer):
    def __init__(self, config: LongShort, width: int) -> None:
        super().__init__()
        half = width // 2
        if width % 2 or half % config.filters:
            raise BadInput(f"half of a width of {width} does not divide into {config.filters} filters; change model.width, or "
                           "model.mixer.filters")  # fmt: skip
        dense = Dense(heads=config.heads, causal=config.causal, dropout=config.dropout, bias=config.bias, rotary=config.rotary)
        self.far, self.near = DenseAttention(dense, half), Filtered(config, half)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        far, near = x.chunk(2, -1)
        return torch.cat([self.far(far, layout), self.near(near, layout)], -1)

    def step(self, x: Tensor, past: Past | None, place: int) -> tuple[Tensor, Past]:
        """(rows, width): of one more token a text, at its place, and what it leaves for the next."""
        far, near = x.chunk(2, -1)
        seen, kept = self.far.step(far, None if past is None else past[:2], place)
        filtered, last = self.near.step(near, None if past is None else past[2])
        return torch.cat([seen, filtered], -1), (*kept, last)


class Filtered(nn.Module):
    """Wu et al. 2019: a gate, a weighted mean of neighbours whose weights all channels of a filter share, and a matrix."""

    def __init__(self, config: LongShort, width: int) -> None:
        super().__init__()
        (self.seen,), self.filters, self.dropout = config.kernels, config.filters, config.dropout
        self.before = self.seen - 1 if config.causal else self.seen // 2
        self.gate, self.out = nn.Linear(width, 2 * width, bias=config.bias), nn.Linear(width, width, bias=config.bias)
        self.gate.weight.parts = 2  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.kernel = None if config.dynamic else nn.Parameter(torch.zeros(config.filters, self.seen))
        self.made = nn.Linear(width, config.filters * self.seen, bias=False) if config.dynamic else None

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        x = F.glu(self.gate(x))
        inside = _padded(layout.owner, self.before, self.seen, -1).unfold(0, self.seen, 1) == layout.owner[:, None]
        weights = self._weights(x) * inside[:, None].to(x.dtype)  # beyond the ends of a text there is nothing
        mixed: Tensor = _Mean.apply(x.unflatten(-1, (self.filters, -1)), weights, self.before)
        return self.out(mixed.flatten(1))

    def step(self, x: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of one more token a text, behind the last that a causal filter sees: (rows, tokens, width)."""
        x = F.glu(self.gate(x))
        seen = x[:, None] if past is None else torch.cat([past, x[:, None]], 1)[:, -self.seen :]
        weights = self._weights(x)[..., self.seen - seen.shape[1] :]
        mixed = (seen.unflatten(-1, (self.filters, -1)) * weights.transpose(1, 2)[..., None]).sum(1)
        return self.out(mixed.flatten(1)), seen

    def _weights(self, x: Tensor) -> Tensor:
        """(tokens, filters, tokens seen), or one row for all tokens: they add up to 1."""
        scores = self.kernel[None] if self.made is None else self.made(x).unflatten(-1, (self.filters, -1))  # type: ignore[index]
        return F.dropout(scores.float().softmax(-1).to(x.dtype), self.dropout, self.training)


class _Mean(torch.autograd.Function):
    """Offset by offset, there and back: nothing much larger than what is read is made or kept. Summed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, before: int) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.before = before
        around, out = _padded(x, before, weights.shape[-1]), x.new_zeros(x.shape, dtype=_summing(x))
        for offset in range(weights.shape[-1]):
            out.addcmul_(around[offset : offset + x.shape[0]], weights[..., offset, None])
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weights = ctx.saved_tensors
        around = _padded(x, ctx.before, weights.shape[-1])
        down, slopes = torch.zeros_like(around, dtype=_summing(x)), []
        for offset in range(weights.shape[-1]):
            here = slice(offset, offset + x.shape[0])
            slopes.append((grad * around[here]).sum(-1))
            down[here].addcmul_(grad, weights[..., offset, None])
        return down[ctx.before : ctx.before + x.shape[0]].to(x.dtype), torch.stack(slopes, -1), None


def _summing(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _padded(x: Tensor, before: int, seen: int, fill: float = 0.0) -> Tensor:
    return F.pad(x, (0, 0) * (x.ndim - 1) + (before, seen - 1 - before), value=fill)
