"""Word vector objectives: word2vec (Mikolov et al. 2013) and fastText (Bojanowski et al. 2017).

They train embedding tables instead of a network, in rounds of a WordVectorTrainer instead of the Trainer.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Protocol

import torch
from msgspec import Meta
from torch import Tensor

from ..config import NonNegFloat, PosFloat, PosInt, Variant
from ..corpus.collate import NumpyBatch
from ..corpus.cooccurrence import Progress
from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..errors import UserError
from ..model.batch import Batch
from ..model.embeddings.fasttext import CharNgramConfig
from ..model.heads import HeadConfig
from ..model.model import Model
from ..train.loss import Loss
from ..word_vectors.word2vec import Word2VecConfig, Word2VecTrainer
from .base import Ints


class WordVectorTrainer(Protocol):
    """Trains word vectors in rounds. Round k depends only on the state and k, so a run resumes bit for bit."""

    num_rounds: int  # in all, some seconds each

    def train_round(self, round_index: int) -> dict[str, float]:
        """Trains one round; returns its metrics, a row of metrics.jsonl."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def build_model(self) -> tuple[Model, dict[str, Any]]:
        """The model to publish, whose token embeddings are the vectors, and facts for its card."""
        ...


class WordVectorObjective(Variant, frozen=True):
    """Base config of word2vec and GloVe; the methods for batches of sequences raise a UserError."""

    min_sentences: ClassVar[int] = 1
    can_fill_mask: ClassVar[bool] = False
    train_keys: ClassVar[tuple[str, ...]] = ("epochs", "device", "keep")  # keys of `train.*` that apply
    default_epochs: ClassVar[float | None] = None  # if `train.epochs` is not given
    allows_partial_epochs: ClassVar[bool] = False  # whether `train.epochs` may be fractional

    def build_trainer(
        self, corpus: Corpus, folder: Path, epochs: float, seed: int, device: torch.device, progress: Progress
    ) -> WordVectorTrainer:
        """A trainer at round 0; co-occurrence counts are kept in `folder / "counts"` and resumed from there."""
        raise NotImplementedError

    def heads(self) -> dict[str, HeadConfig]:
        return {}

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        self._refuse()

    def to_batch(self, arrays: NumpyBatch) -> Batch:
        self._refuse()

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UserError(f"objective={self.__struct_config__.tag} fills a table of words, and reads no sequences; this is for "
                       "objectives that train a network, such as masked")  # fmt: skip


class Word2VecObjective(WordVectorObjective, frozen=True):
    """Base config of skip-gram and CBOW."""

    vector_size: Annotated[PosInt, "numbers of a vector; `model.hidden_size` says the same"] = 100
    window: Annotated[int, Meta(ge=1, le=20), "words on each side at most: from 1 up to so many, drawn for each word"] = 5
    negative: Annotated[PosInt, "wrong words, in expectation, beside each right one; a tree has none"] = 5
    hs: Annotated[bool, "hierarchical softmax over a Huffman tree, instead of negatives"] = False
    sample: Annotated[NonNegFloat, "words of a larger share of the text are thinned out; 0: none is"] = 1e-3
    subwords: Annotated[CharNgramConfig | None, "fastText: words are made of n-grams too, and new words of these alone"] = None

    train_keys: ClassVar[tuple[str, ...]] = ("epochs", "rate", "batch_tokens", "device", "keep")
    default_epochs: ClassVar[float | None] = 5
    allows_partial_epochs: ClassVar[bool] = True
    algorithm: ClassVar[str]

    def build_trainer(
        self, corpus: Corpus, folder: Path, epochs: float, seed: int, device: torch.device, progress: Progress
    ) -> Word2VecTrainer:
        learning_rate: float = self.learning_rate  # type: ignore[attr-defined]
        negative = 0 if self.hs else self.negative
        config = Word2VecConfig(
            self.algorithm, self.vector_size, self.window, negative, self.sample, learning_rate, self.subwords
        )
        return Word2VecTrainer(config, corpus, epochs, seed, device)


class SkipGram(Word2VecObjective, frozen=True):
    """Skip-gram: the center word predicts each of its context words."""

    learning_rate: Annotated[PosFloat, "of the first step; it falls to nothing. `train.learning_rate` says the same"] = 0.025

    algorithm: ClassVar[str] = "skip_gram"


class Cbow(Word2VecObjective, frozen=True):
    """CBOW: the mean of the context vectors predicts the center word.

    word2vec and gensim add the gradient of the mean to every context vector undivided; here it is divided by their number,
    as the derivative of the mean is, and the default learning rate is higher in turn.
    """

    learning_rate: Annotated[PosFloat, "of the first step; it falls to nothing. `train.learning_rate` says the same"] = 0.15

    algorithm: ClassVar[str] = "cbow"
