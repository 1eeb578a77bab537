"""N-gram input of the neural probabilistic language model (NNLM, Bengio et al. 2003)."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from ...config import PosInt, Variant
from ...errors import UserError
from ...tokenization.characters import Lexicon
from ..linear import Linear
from ..packing import Layout
from .base import InputEmbedding

EMBEDDING_RATIO = 60 / 100  # word features per hidden unit in Bengio et al. 2003


class NgramConfig(Variant, frozen=True, tag="ngram"):
    """Embeddings of the last n - 1 words and a tanh hidden layer (NNLM, Bengio et al. 2003).

    x concatenates the embeddings of the last `order - 1` words; the output is [x; tanh(d + H x)].

    An untied LM head on it is y = b + W x + U tanh(d + H x); without `direct` connections, W = 0 and x is left out.

    So hidden_size = intermediate_size + (order - 1) * embedding_size. A size that is not set is what the others leave, and if
    neither is set, both have the paper's proportion (60 features a word to 100 hidden units), for any hidden size.
    """

    order: Annotated[PosInt, "n of the n-gram model: n - 1 context words and the predicted one"] = 5
    embedding_size: Annotated[PosInt | None, "word embedding size; none: what fits model.hidden_size (60 of 340)"] = None
    intermediate_size: Annotated[PosInt | None, "size of the hidden layer; none: what fits model.hidden_size (100 of 340)"] = (
        None
    )
    direct: Annotated[bool, "direct connections from the word embeddings to the output (Bengio et al. 2003)"] = True

    causal: ClassVar[bool] = True

    def token_table_dim(self, hidden_size: int) -> int:
        """Dimension of the encoder's token embedding."""
        return self.fit(hidden_size)[0]

    def fit(self, hidden_size: int) -> tuple[int, int]:
        """(embedding_size, intermediate_size) of a model with this hidden size."""
        if self.order < 2:
            raise UserError("model.embeddings.order=1 has no context words; set 2 or more")
        direct_words = (self.order - 1) * self.direct
        embedding_size, intermediate_size = self.embedding_size, self.intermediate_size
        if embedding_size is None and (intermediate_size is None or not direct_words):
            embedding_size = max(1, round(EMBEDDING_RATIO * hidden_size / (1 + EMBEDDING_RATIO * direct_words)))
        elif embedding_size is None:
            embedding_size = max(1, (hidden_size - intermediate_size) // direct_words)  # type: ignore[operator]
        if intermediate_size is None:
            intermediate_size = max(1, hidden_size - direct_words * embedding_size)
        if (needed := intermediate_size + direct_words * embedding_size) != hidden_size:
            raise UserError(
                f"model.hidden_size={hidden_size} does not fit model.embeddings=ngram: intermediate_size={intermediate_size}"
                + (f" + {direct_words} words x embedding_size={embedding_size}" if direct_words else "")
                + f" = {needed}; set model.hidden_size={needed}, or leave out the sizes of model.embeddings"
            )
        return embedding_size, intermediate_size

    def build(self, hidden_size: int, vocab_size: int, lexicon: Lexicon | None = None) -> "NgramEmbedding":
        return NgramEmbedding(self, *self.fit(hidden_size))


class NgramEmbedding(InputEmbedding):
    """Context windows of `order - 1` tokens; before the start of a sequence its first token ([CLS]) is repeated as padding."""

    def __init__(self, config: NgramConfig, embedding_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.context_size, self.direct_connections = config.order - 1, config.direct
        self.hidden = Linear(self.context_size * embedding_size, intermediate_size)

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        assert token_embedding is not None
        offsets = torch.arange(self.context_size, device=input_ids.device)
        token_index = torch.arange(len(input_ids), device=input_ids.device)
        context_index = token_index[:, None] - torch.minimum(offsets, layout.position[:, None])
        x = token_embedding(input_ids[context_index]).flatten(1)
        hidden = self.hidden(x).tanh()
        return torch.cat([x, hidden], -1) if self.direct_connections else hidden
