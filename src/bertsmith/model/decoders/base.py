"""`Decoder`: interface of decoders, with a parallel forward pass (teacher forcing) and token-by-token decoding."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..batch import Inputs
from ..packing import Layout

if TYPE_CHECKING:
    from ..encoder import Encoder


class Decoder(nn.Module, ABC):
    """Decoder of a sequence-to-sequence model.

    Target tokens use the encoder's embeddings, passed in with each call so that the checkpoint holds them once.
    """

    @abstractmethod
    def forward(
        self, decoder_inputs: Inputs, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder"
    ) -> Tensor:
        """Hidden states (target tokens, hidden_size) from which the next tokens are predicted, with teacher forcing.

        `encoder_hidden_states` (source tokens, hidden_size), packed as `encoder_layout`: one source for each target.
        """

    @abstractmethod
    def init_state(self, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder", max_length: int) -> Any:
        """Decoding state before the first token, one row for each source, for targets of at most `max_length` tokens."""

    @abstractmethod
    def decode_step(self, state: Any, input_ids: Tensor, encoder: "Encoder") -> tuple[Any, Tensor]:
        """State after one more token for each row, and its hidden states (rows, hidden_size) as in `forward`.

        input_ids: (rows,). The state passed in may be changed in place.
        """

    @abstractmethod
    def reorder_state(self, state: Any, row_indices: Tensor) -> Any:
        """State with the rows `row_indices`, for beam search."""

    @property
    @abstractmethod
    def source_attentions(self) -> list[nn.Module]:
        """The modules that attend to the source, one for each layer that does; each has a method `attention_weights`."""

    def init_from_encoder(self, encoder: "Encoder") -> str | None:
        """Copy the weights of a pre-trained encoder where both have the same parts; returns a description of what stays new."""
        return None


def embed_step(encoder: "Encoder", input_ids: Tensor, position: int) -> Tensor:
    """(rows, hidden_size): embeddings of one token for each row, all at the same position."""
    layout = Layout.next_tokens(torch.full((len(input_ids),), position), torch.full_like(input_ids, position))
    return encoder.embed(Inputs(input_ids, layout))
