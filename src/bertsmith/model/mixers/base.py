"""The interface of token mixers (attention, RNN, convolution), and the fused query, key and value projection."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ..linear import Linear
from ..packing import Layout


class Mixer(nn.Module, ABC):
    """Token-mixing sublayer: (tokens, hidden_size) in, the same shape out.

    The output of a token depends on tokens of its own sequence only, however sequences are packed.
    """

    can_compile: ClassVar[bool] = True  # whether torch.compile captures it as one graph

    @property
    def mem_len(self) -> int:
        """Past positions that the stack caches for it; if not 0, `forward` takes them as a third argument, `past`."""
        return 0

    @property
    def max_past_len(self) -> int | None:
        """How many past positions it can attend to; None: no limit."""
        return None

    def prepare_forward(self) -> None:
        """Called before each forward pass, outside any compiled graph: for sizes that depend on the weights' values."""

    def tie_weights(self, first_mixer: "Mixer") -> None:
        """Shares the parameters that all layers have in common with the first block's mixer."""

    @property
    def tied_parameters(self) -> list[nn.Parameter]:
        """Parameters that it uses and another block's mixer owns."""
        return []

    def penalty(self) -> Tensor | float:
        """Regularization term, added to the loss of every objective."""
        return 0.0

    @abstractmethod
    def forward(self, x: Tensor, layout: Layout) -> Tensor: ...


class QKVProjection(nn.Module):
    """Query, key and value projections of multi-head attention in one matrix, and the output projection.

    (tokens, hidden_size) -> three of (tokens, num_heads, head_dim), head_dim = hidden_size / num_heads; `project_out` back.
    """

    def __init__(self, hidden_size: int, num_heads: int, bias: bool = True) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise UserError(
                f"a hidden_size of {hidden_size} does not divide into {num_heads} heads; "
                f"try model.mixer.num_attention_heads={max(1, hidden_size // 64)}"
            )
        self.num_heads = num_heads
        self.qkv, self.output = (
            Linear(hidden_size, 3 * hidden_size, bias=bias, num_parts=3),
            Linear(hidden_size, hidden_size, bias=bias),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        return q, k, v

    def project_kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values only, of tokens that are attended to but have no queries: (tokens, num_heads, head_dim) each."""
        if not isinstance(self.qkv, nn.Linear):  # wrapped by LoRA: its weight alone is not the projection
            return self(x)[1:]
        hidden_size = self.qkv.in_features
        bias = None if self.qkv.bias is None else self.qkv.bias[hidden_size:]
        k, v = F.linear(x, self.qkv.weight[hidden_size:], bias).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        return k, v

    def project_out(self, x: Tensor) -> Tensor:
        """(tokens, num_heads, head_dim) -> (tokens, hidden_size)"""
        return self.output(x.flatten(-2))
