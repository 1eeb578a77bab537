"""The first neural language model (Bengio et al. 2003): the words just read, side by side, and what they make together."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from ...config import PosInt, Variant
from ...errors import UserError
from ..packing import Layout
from .base import InputEmbedding


class NgramConfig(Variant, frozen=True, tag="grams"):
    """x is the vectors of the `order - 1` last words; a token becomes (x, tanh(d + H x)).

    An untied head over it is y = b + W x + U tanh(d + H x); without `direct`, W is 0 and there is no x in it.
    """

    order: Annotated[PosInt, "words in all: those it reads and the one it foretells"] = 5
    numbers: Annotated[PosInt, "a word is made of"] = 60
    inner: Annotated[PosInt, "numbers of the hidden layer"] = 100
    direct: Annotated[bool, "the vectors of words are scored beside the hidden layer"] = True

    causal: ClassVar[bool] = True

    @property
    def token_table_dim(self) -> int:
        """Numbers in the encoder's table of tokens."""
        return self.numbers

    @property
    def hidden_size(self) -> int:
        """What a model of it must be wide."""
        return self.inner + (self.order - 1) * self.numbers * self.direct

    def build(self, hidden_size: int, vocab_size: int) -> "NgramEmbedding":
        if self.order < 2:
            raise UserError("model.front.order=1 reads no word; take 2 or more")
        if hidden_size != self.hidden_size:
            raise UserError(
                f"a front of order {self.order} makes vectors of {self.hidden_size}; set model.width={self.hidden_size}"
            )
        return NgramEmbedding(self)


class NgramEmbedding(InputEmbedding):
    """Before the first token of a sequence stands that token again: [CLS], as often as an n-gram's start symbol."""

    def __init__(self, config: NgramConfig) -> None:
        super().__init__()
        self.context_size, self.direct_connections = config.order - 1, config.direct
        self.hidden = nn.Linear(self.context_size * config.numbers, config.inner)

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        assert token_embedding is not None
        back = torch.arange(self.context_size, device=input_ids.device)
        here = torch.arange(len(input_ids), device=input_ids.device)
        where = here[:, None] - torch.minimum(back, layout.position[:, None])
        x = token_embedding(input_ids[where]).flatten(1)
        hidden = self.hidden(x).tanh()
        return torch.cat([x, hidden], -1) if self.direct_connections else hidden
