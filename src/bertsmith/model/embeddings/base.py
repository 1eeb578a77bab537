"""The one interface behind every way of making a vector of a token without looking it up alone."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ..packing import Layout


class InputEmbedding(nn.Module, ABC):
    """(tokens,) ids in, (tokens, width) out; never depends on another sequence.

    `table` is the encoder's own table of tokens, or None where the config asks for none (`table` there is 0). The config
    also says `causal`: whether what a token becomes never depends on those after it.
    """

    def reset_parameters(self) -> None:
        """New weights of its own, where those of all models (`deviation`) do not suit it."""

    @abstractmethod
    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor: ...
