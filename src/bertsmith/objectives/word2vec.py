"""Objectives that fill a table of words and train no network: `pretrain` hands them to a loop of their own."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Protocol

import torch
from msgspec import Meta
from torch import Tensor

from ..config import Amount, Count, Positive, Variant
from ..corpus.collate import Arrays
from ..corpus.cooccurrence import Progress
from ..corpus.loader import Batches
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model.batch import Batch
from ..model.embeddings.fasttext import CharacterGrams
from ..model.heads import HeadConfig
from ..model.model import Model
from ..train.loss import Loss
from ..word_vectors.word2vec import Learning, Setting
from .base import Ints


class Filling(Protocol):
    """A table on its way. Turn k is a function of the state and of k, so that a run goes on from any turn bit for bit."""

    turns: int  # pieces of work in all, some seconds each

    def turn(self, k: int) -> dict[str, float]:
        """Does piece k; what it tells, `loss` and `pairs` at least, goes into a row of metrics.jsonl."""
        ...

    def state(self) -> dict[str, Tensor]: ...

    def load(self, state: dict[str, Tensor]) -> None: ...

    def finished(self) -> tuple[Model, dict[str, Any]]:
        """The model to publish, whose token table the vectors are, and what the run has to tell."""
        ...


class Tabled(Variant, frozen=True):
    """What word2vec's and GloVe's recipes have in common: whoever asks them for batches of sequences is told no."""

    least: ClassVar[int] = 1
    hides: ClassVar[bool] = False
    own: ClassVar[tuple[str, ...]] = ("epochs", "device", "keep")  # what it takes of `train.*`; the rest is for networks
    usual: ClassVar[float | None] = None  # epochs, where none are given
    cuts: ClassVar[bool] = False  # an epoch may be cut short

    def filling(
        self, corpus: Corpus, folder: Path, epochs: float, seed: int, device: torch.device, progress: Progress
    ) -> Filling:
        """A table at its beginning; what is counted beforehand may lie in `folder / "counts"`, and go on from there."""
        raise NotImplementedError

    def heads(self) -> dict[str, HeadConfig]:
        return {}

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        self._refuse()

    def batch(self, arrays: Arrays) -> Batch:
        self._refuse()

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BadInput(f"objective={self.__struct_config__.tag} fills a table of words, and reads no sequences; this is for "
                       "objectives that train a network, such as masked")  # fmt: skip


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
