"""fastText embedding (Bojanowski et al. 2017): mean of a word's own row and the rows of its character n-grams."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from ...config import Config, PosInt, Variant
from ...errors import UserError
from ...tokenization.characters import Lexicon, hash_ngrams
from ..packing import Layout
from .base import InputEmbedding

Ints = NDArray[np.int64]


class CharNgramConfig(Config, frozen=True):
    """Character n-grams of fastText (Bojanowski et al. 2017), hashed into buckets."""

    min_n: Annotated[PosInt, "minimum length of character n-grams, with the word boundaries < and >"] = 3
    max_n: Annotated[PosInt, "maximum length of character n-grams"] = 6
    bucket: Annotated[int, Meta(ge=1, lt=2**31), "number of hash buckets for the n-grams"] = 2_000_000

    def embedding_rows(self, words: Sequence[str], is_special: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Row indices of all words, concatenated, and the offset of each word in them (words + 1,).

        A word has its own row, then `len(words) + bucket` of each n-gram; a special token has its own row only.
        """
        if self.max_n < self.min_n:
            raise UserError(f"min_n={self.min_n} is more than max_n={self.max_n}; lower min_n, or raise max_n")
        hashed_words = ["" if special else word for word, special in zip(words, is_special, strict=True)]
        buckets, offsets = hash_ngrams(hashed_words, self.min_n, self.max_n, self.bucket)
        num_ngrams = np.where(is_special, 0, np.diff(offsets))
        buckets = buckets[np.repeat(~is_special, np.diff(offsets))]
        row_offsets = np.append(0, (num_ngrams + 1).cumsum())
        rows = np.insert(buckets + len(words), np.append(0, num_ngrams.cumsum())[:-1], np.arange(len(words)))
        return rows, row_offsets


class FastTextConfig(Variant, frozen=True, tag="fasttext"):
    """fastText embeddings (Bojanowski et al. 2017), also of words outside the vocabulary.

    The token table holds the final vectors (word and n-grams averaged) of known words; other words are the mean of their
    n-grams."""

    vector_size: Annotated[PosInt, "dimension of the word vectors (model.hidden_size)"]
    ngrams: Annotated[CharNgramConfig, "character n-grams of a word"] = CharNgramConfig()

    has_open_vocabulary: ClassVar[bool] = True

    def token_table_dim(self, hidden_size: int) -> int:
        """Dimension of the encoder's token embedding."""
        return self.vector_size

    def build(self, hidden_size: int, vocab_size: int, lexicon: Lexicon | None = None) -> "FastTextEmbedding":
        if hidden_size != self.vector_size:
            raise UserError(f"model.embeddings.vector_size={self.vector_size} must equal model.hidden_size={hidden_size}")
        return FastTextEmbedding(self.ngrams, hidden_size, vocab_size, lexicon)


class FastTextEmbedding(InputEmbedding):
    """Table lookup for words of the vocabulary, mean of n-gram vectors for all others."""

    def __init__(self, config: CharNgramConfig, hidden_size: int, vocab_size: int, lexicon: Lexicon | None = None) -> None:
        """`lexicon` has the words of ids behind the vocabulary; it may grow later."""
        super().__init__()
        self.config, self.vocab_size, self.lexicon = config, vocab_size, lexicon or Lexicon()
        self.ngram_embeddings = nn.Embedding(config.bucket, hidden_size)

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        assert token_embedding is not None
        oov_ids, inverse = input_ids[input_ids >= self.vocab_size].unique(return_inverse=True)
        if not len(oov_ids):
            return token_embedding(input_ids)
        words = [self.lexicon.words[word_id] for word_id in oov_ids.tolist()]
        vectors = token_embedding(input_ids.clamp(max=self.vocab_size - 1))
        return vectors.index_put((input_ids >= self.vocab_size,), self.embed_words(words)[inverse].to(vectors.dtype))

    def embed_words(self, words: Sequence[str]) -> Tensor:
        """(words, hidden_size): vectors of out-of-vocabulary words."""
        buckets, offsets = (
            torch.from_numpy(array).to(self.ngram_embeddings.weight.device) for array in self.hash_ngrams(words)
        )
        return F.embedding_bag(buckets, self.ngram_embeddings.weight, offsets[:-1], mode="mean")

    def hash_ngrams(self, words: Sequence[str]) -> tuple[Ints, Ints]:
        """Buckets of the n-grams of all words, concatenated, and offsets (words + 1,)."""
        return hash_ngrams(words, self.config.min_n, self.config.max_n, self.config.bucket)
