"""The first neural language model (Bengio et al. 2003): the words just read, side by side, and what they make together."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from ...config import Count, Variant
from ...errors import BadInput
from ..packing import Layout
from .base import Front


class Grams(Variant, frozen=True):
    """x is the vectors of the `order - 1` last words; a token becomes (x, tanh(d + H x)).

    An untied head over it is y = b + W x + U tanh(d + H x); without `direct`, W is 0 and there is no x in it.
    """

    order: Annotated[Count, "words in all: those it reads and the one it foretells"] = 5
    numbers: Annotated[Count, "a word is made of"] = 60
    inner: Annotated[Count, "numbers of the hidden layer"] = 100
    direct: Annotated[bool, "the vectors of words are scored beside the hidden layer"] = True

    causal: ClassVar[bool] = True

    @property
    def table(self) -> int:
        """Numbers in the encoder's table of tokens."""
        return self.numbers

    @property
    def width(self) -> int:
        """What a model of it must be wide."""
        return self.inner + (self.order - 1) * self.numbers * self.direct

    def build(self, width: int, vocabulary: int) -> "Context":
        if self.order < 2:
            raise BadInput("model.front.order=1 reads no word; take 2 or more")
        if width != self.width:
            raise BadInput(f"a front of order {self.order} makes vectors of {self.width}; set model.width={self.width}")
        return Context(self)


class Context(Front):
    """Before the first token of a sequence stands that token again: [CLS], as often as an n-gram's start symbol."""

    def __init__(self, config: Grams) -> None:
        super().__init__()
        self.reach, self.direct = config.order - 1, config.direct
        self.hidden = nn.Linear(self.reach * config.numbers, config.inner)

    def forward(self, ids: Tensor, layout: Layout, table: nn.Embedding | None) -> Tensor:
        assert table is not None
        back = torch.arange(self.reach, device=ids.device)
        here = torch.arange(len(ids), device=ids.device)
        where = here[:, None] - torch.minimum(back, layout.place[:, None])
        x = table(ids[where]).flatten(1)
        hidden = self.hidden(x).tanh()
        return torch.cat([x, hidden], -1) if self.direct else hidden
