"""The one interface behind every way of moving information between tokens."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ..packing import Layout


class Mixer(nn.Module, ABC):
    """(tokens, width) in, the same out; what a token becomes never depends on another sequence."""

    can_compile: ClassVar[bool] = True  # into one graph

    @property
    def mem_len(self) -> int:
        """Past positions that the stack keeps for it; one that remembers takes them as a third argument, `past`."""
        return 0

    @property
    def max_past_len(self) -> int | None:
        """Past positions that it could see at all; None: all there are."""
        return None

    def prepare_forward(self) -> None:
        """Called before a pass, outside of any compiled graph: for what a graph cannot read from its weights."""

    def tie_weights(self, first_mixer: "Mixer") -> None:
        """Takes from the first block's mixer what all layers have in common."""

    @property
    def tied_parameters(self) -> list[nn.Parameter]:
        """Weights that it uses, and another block's mixer has."""
        return []

    def penalty(self) -> Tensor | float:
        """A price of its own, added to what is learnt whatever that is."""
        return 0.0

    @abstractmethod
    def forward(self, x: Tensor, layout: Layout) -> Tensor: ...


class QKVProjection(nn.Module):
    """Width to heads and back: (tokens, width) <-> (tokens, heads, width / heads), the three ways in by one matrix."""

    def __init__(self, hidden_size: int, num_heads: int, bias: bool = True) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise UserError(
                f"a width of {hidden_size} does not divide into {num_heads} heads; try model.mixer.heads={max(1, hidden_size // 64)}"
            )
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(hidden_size, 3 * hidden_size, bias=bias), nn.Linear(hidden_size, hidden_size, bias=bias)
        self.qkv.weight.parts = 3  # type: ignore[attr-defined]  # an optimizer may treat each by itself

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        return q, k, v

    def project_kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone, of what is looked at and asks nothing."""
        if type(self.qkv) is not nn.Linear:  # something learns beside it (LoRA)
            return self(x)[1:]
        width = self.qkv.in_features
        bias = None if self.qkv.bias is None else self.qkv.bias[width:]
        k, v = F.linear(x, self.qkv.weight[width:], bias).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        return k, v

    def project_out(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(-2))
