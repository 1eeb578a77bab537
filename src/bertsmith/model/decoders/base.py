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
    def forward(
        self, decoder_inputs: Inputs, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder"
    ) -> Tensor:
        """(tokens of the answers, width): what follows each token is to be told from its row.

        `source` (tokens, width) is what the encoder made of the texts, which lie as `layout` says, one for each answer.
        """

    @abstractmethod
    def init_state(self, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder") -> Any:
        """The state before the first token, a row a text."""

    @abstractmethod
    def decode_step(self, state: Any, input_ids: Tensor, encoder: "Encoder") -> tuple[Any, Tensor]:
        """The state after one more token a row, (rows,), and (rows, width), as `forward` gives it for that token."""

    @abstractmethod
    def reorder_state(self, state: Any, row_indices: Tensor) -> Any:
        """The state with these rows."""

    def init_from_encoder(self, encoder: "Encoder") -> str | None:
        """Begins as a pre-trained encoder, where it has parts of the same kind; what it would have, and is new, is told."""
        return None


def embed_step(encoder: "Encoder", input_ids: Tensor, position: int) -> Tensor:
    """(rows, width): one token a row, all of them at one place of their answers."""
    layout = Layout.from_lengths([1] * len(input_ids)).to(input_ids.device)
    return encoder.embed(Inputs(input_ids, replace(layout, position=torch.full_like(layout.position, position))))
