"""What each token thinks by itself: width to inner width and back, with an activation between."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config, Count
from . import kernels
from .activations import ACTIVATIONS, Activation


class FeedForward(Config, frozen=True):
    inner: Annotated[Count, "inner width"] = 3072
    activation: Annotated[Activation, "here and in the heads of pre-training: GELU by erf, as BERT, by tanh, as ALBERT"] = (
        "gelu"
    )
    gated: Annotated[bool, "the activation opens and shuts a second matrix of the inner width, as in GEGLU"] = False
    bias: Annotated[bool, "add a bias after each matrix"] = True

    def build(self, width: int) -> nn.Module:
        return Fed(self, width)


class Fed(nn.Module):
    def __init__(self, config: FeedForward, width: int) -> None:
        super().__init__()
        self.kind, self.gated, above = config.activation, config.gated, config.inner * (1 + config.gated)
        self.up, self.down = nn.Linear(width, above, bias=config.bias), nn.Linear(config.inner, width, bias=config.bias)
        self.up.weight.parts = 1 + config.gated  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self._fused(x) if kernels.serves(x) and self.kind != "relu" else self._plain(self.up(x)))

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
