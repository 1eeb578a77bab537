"""Attention from an answer to its source: every token written looks at all that was read."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from ..layout import Layout
from ..mixers import Dense, LongShort

if TYPE_CHECKING:
    from ..encoder import EncoderConfig

Seen = tuple[Tensor, Tensor]  # keys and values of sources, (rows, heads, longest, width of a head)


class Crossing(nn.Module):
    """Queries of the answer, keys and values of the source by one matrix; with the norm behind it, or before it."""

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        assert isinstance(config.mixer, Dense | LongShort)
        width, bias = config.width, config.mixer.bias
        halves = 2 if isinstance(config.mixer, LongShort) else 1  # whose heads are of half the width
        self.heads, self.dropout = halves * config.mixer.heads, config.mixer.dropout
        self.q, self.kv, self.out = (nn.Linear(width, times * width, bias=bias) for times in (1, 2, 1))
        self.kv.weight.parts = 2  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.norm = config.join()

    def forward(self, x: Tensor, layout: Layout, source: Tensor, keys: Layout) -> Tensor:
        """(tokens of the answers, width): what each finds in the source of its answer."""
        k, v = self._split(source)
        q = self.q(x).unflatten(-1, (self.heads, -1))
        dropout = self.dropout if self.training else 0.0
        return self.out(layout.attend(q, k, v, dropout=dropout, keys=keys).flatten(-2))

    def keys(self, source: Tensor, layout: Layout) -> Seen:
        """What every step will look at, computed once."""
        k, v = (layout.grid(part).transpose(1, 2).contiguous() for part in self._split(source))
        return k, v

    def step(self, x: Tensor, seen: Seen, real: Tensor | None) -> Tensor:
        """(rows, width): the same for one token a row."""
        q = self.q(x).unflatten(-1, (self.heads, 1, -1))
        return self.out(F.scaled_dot_product_attention(q, *seen, real).flatten(1))

    def _split(self, source: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.kv(source).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        return k, v
