"""Factorized token embeddings: a narrow table, projected to the hidden size before positions and segments are added.

ALBERT's factorization (`model.embedding_size`, Lan et al. 2020) adds positions and applies LayerNorm in the narrow space. Here
both stay in the hidden size, so that a trained table V x H can be replaced by its truncated SVD.
"""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Variant
from ...tokenization.characters import Lexicon
from ..linear import Linear
from ..packing import Layout
from ..sublayers import to_compute_dtype
from .base import InputEmbedding


class FactorizedConfig(Variant, frozen=True, tag="factorized"):
    """A token table of `embedding_size`, projected to the hidden size; a tied head uses the same product."""

    embedding_size: Annotated[PosInt, "size of the token table (128 in ALBERT)"] = 128

    def token_table_dim(self, hidden_size: int) -> int:
        """Dimension of the encoder's token embedding."""
        return self.embedding_size

    def build(self, hidden_size: int, vocab_size: int, lexicon: Lexicon | None = None) -> "FactorizedEmbedding":
        return FactorizedEmbedding(self.embedding_size, hidden_size)


class FactorizedEmbedding(InputEmbedding):
    """W e for the row e of a token: (tokens,) -> (tokens, hidden_size)."""

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.projection = Linear(embedding_size, hidden_size, bias=False)

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        assert token_embedding is not None
        return self.projection(F.embedding(input_ids, to_compute_dtype(token_embedding.weight)))

    def project_back(self, hidden_states: Tensor) -> Tensor:
        """W^T h: (rows, hidden_size) -> (rows, embedding_size), whose products with the table are the logits of a tied head."""
        return F.linear(hidden_states, self.projection.weight.T)
