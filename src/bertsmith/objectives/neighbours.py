"""word2vec and fastText: vectors that tell a word's real neighbours from others (Mikolov et al. 2013)."""

from pathlib import Path
from typing import Annotated, ClassVar

import torch
from msgspec import Meta

from ..config import Amount, Count, Positive
from ..corpus.cooccurrence import Progress
from ..corpus.store import Corpus
from ..model.fronts.subwords import CharacterGrams
from .learning import Learning, Setting
from .tabled import Tabled


class Neighbours(Tabled, frozen=True):
    """What skip-gram and CBOW have in common."""

    width: Annotated[Count, "numbers of a vector; `model.width` says the same"] = 100
    window: Annotated[int, Meta(ge=1, le=20), "words on each side at most: from 1 up to so many, drawn for each word"] = 5
    negatives: Annotated[Count, "wrong words, in expectation, beside each right one; a tree has none"] = 5
    tree: Annotated[bool, "hierarchical softmax over a Huffman tree, instead of negatives"] = False
    sample: Annotated[Amount, "words of a larger share of the text are thinned out; 0: none is"] = 1e-3
    subwords: Annotated[CharacterGrams | None, "fastText: words are made of n-grams too, and new words of these alone"] = None

    own: ClassVar[tuple[str, ...]] = ("epochs", "rate", "batch_tokens", "device", "keep")
    usual: ClassVar[float | None] = 5
    cuts: ClassVar[bool] = True
    way: ClassVar[str]

    def filling(
        self, corpus: Corpus, folder: Path, epochs: float, seed: int, device: torch.device, progress: Progress
    ) -> Learning:
        rate: float = self.rate  # type: ignore[attr-defined]
        return Learning(Setting(self.way, self.width, self.window, 0 if self.tree else self.negatives, self.sample, rate,
                                self.subwords), corpus, epochs, seed, device)  # fmt: skip


class SkipGram(Neighbours, frozen=True):
    """A word foretells each of its neighbours."""

    rate: Annotated[Positive, "of the first step; it falls to nothing. `train.rate` says the same"] = 0.025

    way: ClassVar[str] = "skip_gram"


class Cbow(Neighbours, frozen=True):
    """The mean of its neighbours foretells a word.

    word2vec and gensim add the gradient of the mean to every neighbour undivided; here it is divided by their number, as
    the mean has it, and the rate is higher in turn.
    """

    rate: Annotated[Positive, "of the first step; it falls to nothing. `train.rate` says the same"] = 0.15

    way: ClassVar[str] = "cbow"
