"""The one interface behind every way of writing: all of an answer at once while it is learnt, a token at a time later."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..batch import Inputs
from ..packing import Layout

if TYPE_CHECKING:
    from ..encoder import Encoder


class Decoder(nn.Module, ABC):
    """Answers are read through the encoder's own tables, which it is handed: they stay one tensor in a checkpoint."""

    @abstractmethod
    def forward(self, answer: Inputs, source: Tensor, layout: Layout, encoder: "Encoder") -> Tensor:
        """(tokens of the answers, width): what follows each token is to be told from its row.

        `source` (tokens, width) is what the encoder made of the texts, which lie as `layout` says, one for each answer.
        """

    @abstractmethod
    def begin(self, source: Tensor, layout: Layout, encoder: "Encoder") -> Any:
        """The state before the first token, a row a text."""

    @abstractmethod
    def step(self, state: Any, tokens: Tensor, encoder: "Encoder") -> tuple[Any, Tensor]:
        """The state after one more token a row, (rows,), and (rows, width), as `forward` gives it for that token."""

    @abstractmethod
    def reorder(self, state: Any, rows: Tensor) -> Any:
        """The state with these rows."""

    def start_from(self, encoder: "Encoder") -> str | None:
        """Begins as a pre-trained encoder, where it has parts of the same kind; what it would have, and is new, is told."""
        return None


def looked_up(encoder: "Encoder", tokens: Tensor, place: int) -> Tensor:
    """(rows, width): one token a row, all of them at one place of their answers."""
    layout = Layout.of([1] * len(tokens)).to(tokens.device)
    return encoder.embed(Inputs(tokens, replace(layout, place=torch.full_like(layout.place, place))))
