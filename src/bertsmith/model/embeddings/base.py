"""`InputEmbedding`: interface of input embeddings that are more than a table lookup."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ..packing import Layout


class InputEmbedding(nn.Module, ABC):
    """(tokens,) ids -> (tokens, hidden_size); the embedding of a token depends only on its own sequence.

    `token_embedding` is the encoder's token embedding, or None if the config's `token_table_dim` is 0. A config whose
    embeddings never depend on later tokens sets `causal = True`; one that computes each distinct word of a batch from its
    characters, of which [UNK] has none, sets `spells_words = True`; one that has
    vectors of words outside the vocabulary, by the characters that the tokenizer's lexicon has, `has_open_vocabulary = True`.
    """

    def reset_parameters(self) -> None:
        """Initialize weights that need another distribution than the model's (`initializer_range`)."""

    @abstractmethod
    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor: ...
