"""Sublayers of a block: feed-forward layer, and residual add with LayerNorm.

`to_compute_dtype` casts to the autocast dtype, in which the residual stream is held on a GPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..config import Config, PosInt
from . import kernels
from .linear import Linear


def to_compute_dtype(x: Tensor) -> Tensor:
    """Cast to the autocast dtype on a GPU (half the memory traffic); unchanged on a CPU or without autocast."""
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        return x.to(torch.get_autocast_dtype("cuda"))
    return x


Activation = Literal["gelu", "gelu-tanh", "relu", "silu"]
PoolActivation = Literal["tanh", "relu", "gelu", "none"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # exact (erf), as BERT
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # as ALBERT; gelu_new in transformers
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForwardConfig(Config, frozen=True):
    """Position-wise feed-forward layer, optionally gated (GLU variants, Shazeer 2020)."""

    intermediate_size: Annotated[PosInt, "size of the inner layer (4 * hidden_size in BERT)"] = 3072
    hidden_act: Annotated[
        Activation, "activation, also of the pre-training heads: gelu (erf, BERT), gelu-tanh (ALBERT), ..."
    ] = "gelu"
    glu: Annotated[bool, "gated linear unit (Shazeer 2020): GEGLU, SwiGLU with silu, ReGLU with relu"] = False
    bias: Annotated[bool, "bias in the linear layers"] = True
    chunk_size: Annotated[
        PosInt | None, "tokens computed at a time: less memory, recomputed in training; none: all at once"
    ] = None

    def build(self, hidden_size: int) -> nn.Module:
        return FeedForwardLayer(self, hidden_size)


class FeedForwardLayer(nn.Module):
    """down(act(up(x))), or down(act(gate) * value) with gate, value = up(x) split in two; (tokens, hidden_size) in and out."""

    def __init__(self, config: FeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.activation_name, self.is_gated, up_features = (
            config.hidden_act,
            config.glu,
            config.intermediate_size * (1 + config.glu),
        )
        self.intermediate, self.output = (
            Linear(hidden_size, up_features, bias=config.bias, num_parts=1 + config.glu),
            Linear(config.intermediate_size, hidden_size, bias=config.bias),
        )
        self.activation, self.chunk_size = ACTIVATIONS[config.hidden_act], config.chunk_size

    def forward(self, x: Tensor) -> Tensor:
        """In chunks of `chunk_size` tokens, recomputed in the backward pass: only one chunk's inner activations are alive."""
        # A compiled graph must serve any number of tokens, so it is not chunked.
        if self.chunk_size is None or x.shape[0] <= self.chunk_size or torch.compiler.is_compiling():
            return self._forward_chunk(x)
        if not torch.is_grad_enabled():
            return torch.cat([self._forward_chunk(chunk) for chunk in x.split(self.chunk_size)])
        chunks = (
            checkpoint(self._forward_chunk, chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in x.split(self.chunk_size)
        )
        return torch.cat(list(chunks))

    def _forward_chunk(self, x: Tensor) -> Tensor:
        return self.output(
            self._fused_up_gelu(x)
            if kernels.supports(x) and self.activation_name.startswith("gelu")
            else self._activate(self.intermediate(x))
        )

    def _activate(self, x: Tensor) -> Tensor:
        if not self.is_gated:
            return self.activation(x)
        gate, value = x.chunk(2, -1)
        return self.activation(gate) * value

    def _fused_up_gelu(self, x: Tensor) -> Tensor:
        from .kernels.gelu import bias_gelu, geglu

        approximate_tanh = self.activation_name == "gelu-tanh"
        if self.is_gated:
            return geglu(self.intermediate(x), approximate_tanh)
        if isinstance(self.intermediate, nn.Linear) and self.intermediate.bias is not None:
            return bias_gelu(F.linear(x, self.intermediate.weight), self.intermediate.bias, approximate_tanh)
        return self.activation(self.intermediate(x))  # LoRALinear, or no bias to fuse


class AddNorm(nn.LayerNorm):
    """Residual add and LayerNorm: LN(residual + dropout(sublayer_out)).

    Post-norm (BERT): the normed sum is also the new residual. Pre-norm (`norm_first`): the residual is the sum itself.
    """

    def __init__(self, hidden_size: int, eps: float, bias: bool, dropout: float, norm_first: bool) -> None:
        super().__init__(hidden_size, eps=eps, bias=bias)
        self.dropout, self.norm_first = dropout, norm_first

    def forward(self, residual: Tensor, sublayer_out: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(input of the next sublayer, new residual), each (tokens, hidden_size)."""
        dropout = self.dropout if self.training else 0.0
        if kernels.supports(residual):
            from .kernels.add_norm import fused_add_norm

            return fused_add_norm(residual, sublayer_out, self.weight, self.bias, self.eps, dropout, self.norm_first)
        total = residual if sublayer_out is None else residual + (F.dropout(sublayer_out, dropout) if dropout else sublayer_out)
        normed = super().forward(total)
        return (normed, total) if self.norm_first else (normed, normed)


class NoNorm(nn.Module):
    """Replaces the AddNorm before the first layer's attention, whose input the embedding norm normalizes (ModernBERT)."""

    def forward(self, residual: Tensor, sublayer_out: None) -> tuple[Tensor, Tensor]:
        """(input of the mixer, residual): both are the embeddings."""
        return residual, residual


class ResidualAdd(nn.Module):
    """Without LayerNorm: residual + dropout(sublayer_out), or dropout(sublayer_out) alone if not `adds_residual`."""

    def __init__(self, dropout: float, adds_residual: bool) -> None:
        super().__init__()
        self.dropout, self.adds_residual = dropout, adds_residual

    def forward(self, residual: Tensor, sublayer_out: Tensor) -> tuple[Tensor, Tensor]:
        sublayer_out = F.dropout(sublayer_out, self.dropout, self.training)
        total = residual + sublayer_out if self.adds_residual else sublayer_out
        return total, total
