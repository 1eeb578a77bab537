"""Words with their n-grams of characters (fastText): a word's vector is the mean of its own row and those of its n-grams."""

from collections.abc import Sequence
from typing import Annotated

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
    """Bojanowski et al. 2017."""

    least: Annotated[PosInt, "characters of an n-gram, < and > among them"] = 3
    most: Annotated[PosInt, "characters at most"] = 6
    buckets: Annotated[int, Meta(ge=1, lt=2**31), "rows for all n-grams, by their hash: some share one"] = 2_000_000

    def embedding_rows(self, words: Sequence[str], is_special: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """The rows of each word, one word after another, and where those of each begin: its own, then (behind the words) its
        buckets; a special token has its own alone."""
        if self.most < self.least:
            raise UserError(f"n-grams of {self.least} to {self.most} characters are none; most must not be below least")
        found, starts = hash_ngrams(["" if hidden else word for word, hidden in zip(words, is_special, strict=True)], self.least,
                              self.most, self.buckets)  # fmt: skip
        sizes = np.where(is_special, 0, np.diff(starts))
        found = found[np.repeat(~is_special, np.diff(starts))]
        begins = np.append(0, (sizes + 1).cumsum())
        parts = np.insert(found + len(words), np.append(0, sizes.cumsum())[:-1], np.arange(len(words)))
        return parts, begins


class FastTextConfig(Variant, frozen=True, tag="subwords"):
    """The table has the vectors of words seen in training, their n-grams in them; any other word is its n-grams alone."""

    numbers: Annotated[PosInt, "a word is made of: the model's width"]
    grams: Annotated[CharNgramConfig, "which, and how many rows there are for them"] = CharNgramConfig()

    @property
    def token_table_dim(self) -> int:
        """Numbers in the encoder's table of tokens."""
        return self.numbers

    def build(self, hidden_size: int, vocab_size: int) -> "FastTextEmbedding":
        if hidden_size != self.numbers:
            raise UserError(f"words of {self.numbers} numbers do not go with model.width={hidden_size}; make them the same")
        return FastTextEmbedding(self.grams, hidden_size, vocab_size)


class FastTextEmbedding(InputEmbedding):
    def __init__(self, config: CharNgramConfig, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size, self.lexicon = config, vocab_size, Lexicon()
        self.buckets = nn.Embedding(config.buckets, hidden_size)

    def attach_lexicon(self, lexicon: Lexicon) -> None:
        """Words past the table are spelt by the lexicon, which may grow."""
        self.lexicon = lexicon

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        assert token_embedding is not None
        new, which = input_ids[input_ids >= self.vocab_size].unique(return_inverse=True)
        if not len(new):
            return token_embedding(input_ids)
        words = [self.lexicon.words[number] for number in new.tolist()]
        vectors = token_embedding(input_ids.clamp(max=self.vocab_size - 1))
        return vectors.index_put((input_ids >= self.vocab_size,), self.embed_words(words)[which].to(vectors.dtype))

    def embed_words(self, words: Sequence[str]) -> Tensor:
        """(words, width): of words outside the vocabulary."""
        found, starts = (torch.from_numpy(one).to(self.buckets.weight.device) for one in self.hash_ngrams(words))
        return F.embedding_bag(found, self.buckets.weight, starts[:-1], mode="mean")

    def hash_ngrams(self, words: Sequence[str]) -> tuple[Ints, Ints]:
        return hash_ngrams(words, self.config.least, self.config.most, self.config.buckets)
