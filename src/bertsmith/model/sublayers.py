"""In which numbers the stream of a model is held."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..config import Config, PosInt
from . import kernels


def to_compute_dtype(x: Tensor) -> Tensor:
    """In the numbers that a GPU's matrices are multiplied in, if those are not its own: half the memory to move."""
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        return x.to(torch.get_autocast_dtype("cuda"))
    return x


Activation = Literal["gelu", "gelu-tanh", "relu", "silu"]
PoolActivation = Literal["tanh", "relu", "gelu", "none"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # in its erf form, as BERT
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # as ALBERT; others call it gelu_new
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForwardConfig(Config, frozen=True):
    inner: Annotated[PosInt, "inner width"] = 3072
    activation: Annotated[Activation, "here and in the heads of pre-training: GELU by erf, as BERT, by tanh, as ALBERT"] = (
        "gelu"
    )
    gated: Annotated[bool, "the activation opens and shuts a second matrix: GEGLU, with silu SwiGLU, with relu ReGLU"] = False
    bias: Annotated[bool, "add a bias after each matrix"] = True
    chunk: Annotated[PosInt | None, "tokens at a time: less memory, and computed twice in training; none: all at once"] = None

    def build(self, hidden_size: int) -> nn.Module:
        return FeedForwardLayer(self, hidden_size)


class FeedForwardLayer(nn.Module):
    def __init__(self, config: FeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.activation_name, self.is_gated, above = config.activation, config.gated, config.inner * (1 + config.gated)
        self.up, self.down = (
            nn.Linear(hidden_size, above, bias=config.bias),
            nn.Linear(config.inner, hidden_size, bias=config.bias),
        )
        self.up.weight.parts = 1 + config.gated  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.activation, self.chunk_size = ACTIVATIONS[config.activation], config.chunk

    def forward(self, x: Tensor) -> Tensor:
        """Of so many tokens at a time: their inner vectors are there for a moment, on the way back too."""
        if (
            self.chunk_size is None or x.shape[0] <= self.chunk_size or torch.compiler.is_compiling()
        ):  # whose graph serves any number
            return self._forward_chunk(x)
        if not torch.is_grad_enabled():
            return torch.cat([self._forward_chunk(part) for part in x.split(self.chunk_size)])
        parts = (
            checkpoint(self._forward_chunk, part, use_reentrant=False, preserve_rng_state=False)
            for part in x.split(self.chunk_size)
        )
        return torch.cat(list(parts))

    def _forward_chunk(self, x: Tensor) -> Tensor:
        return self.down(
            self._fused_up_gelu(x)
            if kernels.supports(x) and self.activation_name.startswith("gelu")
            else self._activate(self.up(x))
        )

    def _activate(self, x: Tensor) -> Tensor:
        if not self.is_gated:
            return self.activation(x)
        gate, value = x.chunk(2, -1)
        return self.activation(gate) * value

    def _fused_up_gelu(self, x: Tensor) -> Tensor:
        from .kernels.gelu import bias_gelu, geglu

        tanh = self.activation_name == "gelu-tanh"
        if self.is_gated:
            return geglu(self.up(x), tanh)
        if type(self.up) is nn.Linear and self.up.bias is not None:
            return bias_gelu(F.linear(x, self.up.weight), self.up.bias, tanh)
        return self.activation(self.up(x))  # LoRA's layers, or no bias to add


class AddNorm(nn.LayerNorm):
    """Norms the sum. Where norms come first the sum itself is what goes on; else, as in BERT, the normed sum is."""

    def __init__(self, hidden_size: int, eps: float, bias: bool, dropout: float, norm_first: bool) -> None:
        super().__init__(hidden_size, eps=eps, bias=bias)
        self.dropout, self.norm_first = dropout, norm_first

    def forward(self, residual: Tensor, sublayer_out: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """What the next part reads, and the stream it will join."""
        dropout = self.dropout if self.training else 0.0
        if kernels.supports(residual):
            from .kernels.add_norm import fused_add_norm

            return fused_add_norm(residual, sublayer_out, self.weight, self.bias, self.eps, dropout, self.norm_first)
        total = residual if sublayer_out is None else residual + (F.dropout(sublayer_out, dropout) if dropout else sublayer_out)
        normed = super().forward(total)
        return (normed, total) if self.norm_first else (normed, normed)


class ResidualAdd(nn.Module):
    """No norm: what was said is added to the stream, or takes its place."""

    def __init__(self, dropout: float, adds_residual: bool) -> None:
        super().__init__()
        self.dropout, self.adds_residual = dropout, adds_residual

    def forward(self, residual: Tensor, sublayer_out: Tensor) -> tuple[Tensor, Tensor]:
        sublayer_out = F.dropout(sublayer_out, self.dropout, self.training)
        total = residual + sublayer_out if self.adds_residual else sublayer_out
        return total, total
