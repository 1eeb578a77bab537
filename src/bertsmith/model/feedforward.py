"""What each token thinks by itself: width to inner width and back, with an activation between."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..config import Config, Count
from . import kernels
from .activations import ACTIVATIONS, Activation


class FeedForward(Config, frozen=True):
    inner: Annotated[Count, "inner width"] = 3072
    activation: Annotated[Activation, "here and in the heads of pre-training: GELU by erf, as BERT, by tanh, as ALBERT"] = (
        "gelu"
    )
    gated: Annotated[bool, "the activation opens and shuts a second matrix: GEGLU, with silu SwiGLU, with relu ReGLU"] = False
    bias: Annotated[bool, "add a bias after each matrix"] = True
    chunk: Annotated[Count | None, "tokens at a time: less memory, and computed twice in training; none: all at once"] = None

    def build(self, width: int) -> nn.Module:
        return Fed(self, width)


class Fed(nn.Module):
    def __init__(self, config: FeedForward, width: int) -> None:
        super().__init__()
        self.kind, self.gated, above = config.activation, config.gated, config.inner * (1 + config.gated)
        self.up, self.down = nn.Linear(width, above, bias=config.bias), nn.Linear(config.inner, width, bias=config.bias)
        self.up.weight.parts = 1 + config.gated  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.activation, self.chunk = ACTIVATIONS[config.activation], config.chunk

    def forward(self, x: Tensor) -> Tensor:
        """Of so many tokens at a time: their inner vectors are there for a moment, on the way back too."""
        if self.chunk is None or x.shape[0] <= self.chunk or torch.compiler.is_compiling():  # whose graph serves any number
            return self._fed(x)
        if not torch.is_grad_enabled():
            return torch.cat([self._fed(part) for part in x.split(self.chunk)])
        parts = (checkpoint(self._fed, part, use_reentrant=False, preserve_rng_state=False) for part in x.split(self.chunk))
        return torch.cat(list(parts))

    def _fed(self, x: Tensor) -> Tensor:
        return self.down(self._fused(x) if kernels.serves(x) and self.kind.startswith("gelu") else self._plain(self.up(x)))

    def _plain(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.activation(x)
        gate, value = x.chunk(2, -1)
        return self.activation(gate) * value

    def _fused(self, x: Tensor) -> Tensor:
        from .kernels.gelu import biased, gated

        tanh = self.kind == "gelu-tanh"
        if self.gated:
            return gated(self.up(x), tanh)
        if type(self.up) is nn.Linear and self.up.bias is not None:
            return biased(F.linear(x, self.up.weight), self.up.bias, tanh)
        return self.activation(self.up(x))  # LoRA's layers, or no bias to add
