"""Word vector objectives: word2vec (Mikolov et al. 2013) and fastText (Bojanowski et al. 2017).

They train embedding tables instead of a network, in rounds of a WordVectorTrainer instead of the Trainer.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from ..config import NonNegFloat, PosInt, Variant
from ..corpus.card import count_unigrams
from ..corpus.cooccurrence import Progress
from ..corpus.store import Corpus
from ..model.embeddings.fasttext import CharNgramConfig
from ..model.model import Model
from ..word_vectors.hierarchical_softmax import build_huffman_paths
from ..word_vectors.windows import keep_probabilities
from ..word_vectors.word2vec import Word2VecConfig, Word2VecTrainer


class WordVectorTrainer(Protocol):
    """Trains word vectors in rounds. Round k depends only on the state and k, so a run resumes bit for bit."""

    num_rounds: int  # in all, some seconds each

    @property
    def chance_loss(self) -> float | None:
        """Loss of vectors that have learned nothing, where it is known."""
        ...

    def train_round(self, round_index: int) -> dict[str, float]:
        """Trains one round; returns its metrics, a row of metrics.jsonl."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def build_model(self) -> tuple[Model, dict[str, Any]]:
        """The model to publish, whose token embeddings are the vectors, and facts for its card."""
        ...


class WordVectorObjective(Variant, frozen=True):
    """Base config of word2vec and GloVe, which train in rounds of a WordVectorTrainer; it is no `Objective` of the Trainer."""

    min_sentences: ClassVar[int] = 1
    can_fill_mask: ClassVar[bool] = False
    train_keys: ClassVar[tuple[str, ...]] = ("epochs", "learning_rate", "device", "save_total_limit")  # of `train.*` that apply
    default_learning_rate: ClassVar[float]  # if `train.learning_rate` is not given
    default_epochs: ClassVar[float | None] = None  # if `train.epochs` is not given
    allows_partial_epochs: ClassVar[bool] = False  # whether `train.epochs` may be fractional

    def build_trainer(
        self,
        corpus: Corpus,
        folder: Path,
        epochs: float,
        seed: int,
        device: torch.device,
        progress: Progress,
        learning_rate: float | None = None,
        batch_words: int | None = None,
    ) -> WordVectorTrainer:
        """A trainer at round 0; co-occurrence counts are kept in `folder / "counts"` and resumed from there.

        learning_rate, batch_words (words per step, of objectives with `train.batch_tokens`): None for the defaults.
        """
        raise NotImplementedError

    def expected_flops(self, corpus: Corpus) -> float:
        """FLOPs of the dot products of one epoch: the forward pass, two per multiply-add."""
        raise NotImplementedError

    def counted_flops(self, result: dict[str, Any], epochs: float) -> float | None:
        """The same of a finished run, where its result tells more than what was expected; else None."""
        return None


class Word2VecObjective(WordVectorObjective, frozen=True):
    """Base config of skip-gram and CBOW."""

    vector_size: Annotated[PosInt, "dimension of the word vectors (same as model.hidden_size)"] = 100
    window: Annotated[int, Meta(ge=1, le=20), "largest context on each side; the size is sampled from 1 to this per word"] = 5
    negative: Annotated[PosInt, "expected noise words per positive pair (not used with hs)"] = 5
    hs: Annotated[bool, "hierarchical softmax (Huffman tree) instead of negative sampling"] = False
    sample: Annotated[NonNegFloat, "frequency threshold above which words are subsampled; 0: no subsampling"] = 1e-3
    subwords: Annotated[
        CharNgramConfig | None, "fastText: character n-grams of words, which also give vectors of unknown words"
    ] = None

    train_keys: ClassVar[tuple[str, ...]] = ("epochs", "learning_rate", "batch_tokens", "device", "save_total_limit")
    default_epochs: ClassVar[float | None] = 5
    allows_partial_epochs: ClassVar[bool] = True
    algorithm: ClassVar[str]

    def build_trainer(
        self,
        corpus: Corpus,
        folder: Path,
        epochs: float,
        seed: int,
        device: torch.device,
        progress: Progress,
        learning_rate: float | None = None,
        batch_words: int | None = None,
    ) -> Word2VecTrainer:
        lr = self.default_learning_rate if learning_rate is None else learning_rate
        negative = 0 if self.hs else self.negative
        config = Word2VecConfig(self.algorithm, self.vector_size, self.window, negative, self.sample, lr, self.subwords)
        trainer = Word2VecTrainer(config, corpus, epochs, seed, device)
        if batch_words is not None:
            trainer.set_batch_words(batch_words)
        return trainer

    def expected_flops(self, corpus: Corpus) -> float:
        """Each prediction takes 1 + negatives dot products, or as many as its Huffman path is long."""
        counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
        counts[corpus.tokenizer.is_special] = 0
        keep_probs = keep_probabilities(counts, self.sample)
        cumulative = np.concatenate([[0.0], np.cumsum(keep_probs[corpus.tokens])])
        # expected sentence lengths after subsampling of frequent words
        num_predictions = self.count_predictions(np.diff(cumulative[corpus.sentence_offsets]))
        if not self.hs:
            return 2 * self.vector_size * num_predictions * (1 + self.negative)
        word_probs = counts * keep_probs / max(1e-300, float((counts * keep_probs).sum()))
        return 2 * self.vector_size * num_predictions * float((build_huffman_paths(counts).lengths * word_probs).sum())

    def count_predictions(self, sentence_lengths: NDArray[np.float64]) -> float:
        """Expected words that are predicted in sentences of these lengths."""
        raise NotImplementedError


class SkipGram(Word2VecObjective, frozen=True):
    """Skip-gram: the center word predicts each of its context words."""

    default_learning_rate: ClassVar[float] = 0.025
    algorithm: ClassVar[str] = "skip_gram"

    def count_predictions(self, sentence_lengths: NDArray[np.float64]) -> float:
        """(center, context) pairs, with window sizes uniform in 1 to `window`."""
        return float(
            sum(
                2 * np.maximum(sentence_lengths - distance, 0).sum() * (self.window - distance + 1) / self.window
                for distance in range(1, self.window + 1)
            )
        )


class Cbow(Word2VecObjective, frozen=True):
    """CBOW: the mean of the context vectors predicts the center word.

    word2vec and gensim add the gradient of the mean to every context vector undivided; here it is divided by their number,
    as the derivative of the mean is, and the default learning rate is higher in turn.
    """

    default_learning_rate: ClassVar[float] = 0.15
    algorithm: ClassVar[str] = "cbow"

    def count_predictions(self, sentence_lengths: NDArray[np.float64]) -> float:
        """One for each word."""
        return float(sentence_lengths.sum())
