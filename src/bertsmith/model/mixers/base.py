"""The one interface behind every way of moving information between tokens."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ...errors import BadInput
from ..layout import Layout


class Mixer(nn.Module, ABC):
    """(tokens, width) in, the same out; what a token becomes never depends on another sequence."""

    @abstractmethod
    def forward(self, x: Tensor, layout: Layout) -> Tensor: ...


class Heads(nn.Module):
    """Width to heads and back: (tokens, width) <-> (tokens, heads, width / heads), the three ways in by one matrix."""

    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise BadInput(
                f"a width of {width} does not divide into {heads} heads; try model.mixer.heads={max(1, width // 64)}"
            )
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.qkv.weight.parts = 3  # type: ignore[attr-defined]  # an optimizer may treat each by itself

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return q, k, v

    def join(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(-2))
