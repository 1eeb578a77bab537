"""N-gram input of the neural probabilistic language model (NNLM, Bengio et al. 2003)."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from ...config import PosInt, Variant
from ...errors import UserError
from ..linear import Linear
from ..packing import Layout
from .base import InputEmbedding


class NgramConfig(Variant, frozen=True, tag="ngram"):
    """Embeddings of the last n - 1 words and a tanh hidden layer (NNLM, Bengio et al. 2003).

    x concatenates the embeddings of the last `order - 1` words; the output is [x; tanh(d + H x)].

    An untied LM head on it is y = b + W x + U tanh(d + H x); without `direct` connections, W = 0 and x is left out.
    """

    order: Annotated[PosInt, "n of the n-gram model: n - 1 context words and the predicted one"] = 5
    embedding_size: Annotated[PosInt, "word embedding size"] = 60
    intermediate_size: Annotated[PosInt, "size of the hidden layer"] = 100
    direct: Annotated[bool, "direct connections from the word embeddings to the output (Bengio et al. 2003)"] = True

    causal: ClassVar[bool] = True

    @property
    def token_table_dim(self) -> int:
        """Dimension of the encoder's token embedding."""
        return self.embedding_size

    @property
    def hidden_size(self) -> int:
        """The hidden size that a model with this embedding must have."""
        return self.intermediate_size + (self.order - 1) * self.embedding_size * self.direct

    def build(self, hidden_size: int, vocab_size: int) -> "NgramEmbedding":
        if self.order < 2:
            raise UserError("model.embeddings.order=1 has no context words; set 2 or more")
        if hidden_size != self.hidden_size:
            raise UserError(
                f"model.embeddings=ngram with order={self.order} gives vectors of size {self.hidden_size}; "
                f"set model.hidden_size={self.hidden_size}"
            )
        return NgramEmbedding(self)


class NgramEmbedding(InputEmbedding):
    """Context windows of `order - 1` tokens; before the start of a sequence its first token ([CLS]) is repeated as padding."""

    def __init__(self, config: NgramConfig) -> None:
        super().__init__()
        self.context_size, self.direct_connections = config.order - 1, config.direct
        self.hidden = Linear(self.context_size * config.embedding_size, config.intermediate_size)

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        assert token_embedding is not None
        offsets = torch.arange(self.context_size, device=input_ids.device)
        token_index = torch.arange(len(input_ids), device=input_ids.device)
        context_index = token_index[:, None] - torch.minimum(offsets, layout.position[:, None])
        x = token_embedding(input_ids[context_index]).flatten(1)
        hidden = self.hidden(x).tanh()
        return torch.cat([x, hidden], -1) if self.direct_connections else hidden
