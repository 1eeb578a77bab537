"""In which numbers the stream of a model is held."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..config import Config, Count
from . import kernels


def halved(x: Tensor) -> Tensor:
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


class Join(nn.LayerNorm):
    """Norms the sum. Where norms come first the sum itself is what goes on; else, as in BERT, the normed sum is."""

    def __init__(self, width: int, eps: float, bias: bool, dropout: float, first: bool) -> None:
        super().__init__(width, eps=eps, bias=bias)
        self.dropout, self.first = dropout, first

    def forward(self, stream: Tensor, said: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """What the next part reads, and the stream it will join."""
        dropout = self.dropout if self.training else 0.0
        if kernels.serves(stream):
            from .kernels.add_norm import joined

            return joined(stream, said, self.weight, self.bias, self.eps, dropout, self.first)
        total = stream if said is None else stream + (F.dropout(said, dropout) if dropout else said)
        normed = super().forward(total)
        return (normed, total) if self.first else (normed, normed)


class Sum(nn.Module):
    """No norm: what was said is added to the stream, or takes its place."""

    def __init__(self, dropout: float, added: bool) -> None:
        super().__init__()
        self.dropout, self.added = dropout, added

    def forward(self, stream: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        said = F.dropout(said, self.dropout, self.training)
        total = stream + said if self.added else said
        return total, total
