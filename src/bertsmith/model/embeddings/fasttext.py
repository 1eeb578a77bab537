"""Words with their n-grams of characters (fastText): a word's vector is the mean of its own row and those of its n-grams."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from ...config import Config, Count, Variant
from ...errors import BadInput
from ...tokenization.characters import Lexicon, grams
from ..packing import Layout
from .base import Front

Ints = NDArray[np.int64]


class CharacterGrams(Config, frozen=True):
    """Bojanowski et al. 2017."""

    least: Annotated[Count, "characters of an n-gram, < and > among them"] = 3
    most: Annotated[Count, "characters at most"] = 6
    buckets: Annotated[int, Meta(ge=1, lt=2**31), "rows for all n-grams, by their hash: some share one"] = 2_000_000

    def parts(self, words: Sequence[str], special: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """The rows of each word, one word after another, and where those of each begin: its own, then (behind the words) its
        buckets; a special token has its own alone."""
        if self.most < self.least:
            raise BadInput(f"n-grams of {self.least} to {self.most} characters are none; most must not be below least")
        found, starts = grams(["" if hidden else word for word, hidden in zip(words, special, strict=True)], self.least,
                              self.most, self.buckets)  # fmt: skip
        sizes = np.where(special, 0, np.diff(starts))
        found = found[np.repeat(~special, np.diff(starts))]
        begins = np.append(0, (sizes + 1).cumsum())
        parts = np.insert(found + len(words), np.append(0, sizes.cumsum())[:-1], np.arange(len(words)))
        return parts, begins


class Subwords(Variant, frozen=True):
    """The table has the vectors of words seen in training, their n-grams in them; any other word is its n-grams alone."""

    numbers: Annotated[Count, "a word is made of: the model's width"]
    grams: Annotated[CharacterGrams, "which, and how many rows there are for them"] = CharacterGrams()

    @property
    def table(self) -> int:
        """Numbers in the encoder's table of tokens."""
        return self.numbers

    def build(self, width: int, vocabulary: int) -> "Composer":
        if width != self.numbers:
            raise BadInput(f"words of {self.numbers} numbers do not go with model.width={width}; make them the same")
        return Composer(self.grams, width, vocabulary)


class Composer(Front):
    def __init__(self, config: CharacterGrams, width: int, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary, self.lexicon = config, vocabulary, Lexicon()
        self.buckets = nn.Embedding(config.buckets, width)

    def meet(self, lexicon: Lexicon) -> None:
        """Words past the table are spelt by the lexicon, which may grow."""
        self.lexicon = lexicon

    def forward(self, ids: Tensor, layout: Layout, table: nn.Embedding | None) -> Tensor:
        assert table is not None
        new, which = ids[ids >= self.vocabulary].unique(return_inverse=True)
        if not len(new):
            return table(ids)
        words = [self.lexicon.words[number] for number in new.tolist()]
        vectors = table(ids.clamp(max=self.vocabulary - 1))
        return vectors.index_put((ids >= self.vocabulary,), self.vectors(words)[which].to(vectors.dtype))

    def vectors(self, words: Sequence[str]) -> Tensor:
        """(words, width): of words outside the vocabulary."""
        found, starts = (torch.from_numpy(one).to(self.buckets.weight.device) for one in self.found(words))
        return F.embedding_bag(found, self.buckets.weight, starts[:-1], mode="mean")

    def found(self, words: Sequence[str]) -> tuple[Ints, Ints]:
        return grams(words, self.config.least, self.config.most, self.config.buckets)
