"""GloVe (Pennington et al. 2014): word vectors whose dot products approximate log co-occurrence counts."""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import PosFloat, PosInt
from ..corpus.cooccurrence import CooccurrenceCounts, Progress, count_cooccurrences
from ..corpus.store import Corpus
from ..errors import UserError
from ..model.model import Model
from ..rng import Stream, permutation, random_bits
from ..word_vectors.glove import GloveTables, batch_slices
from ..word_vectors.models import bag_of_vectors
from .word2vec import WordVectorObjective

PAIRS_PER_ROUND = 1 << 22  # at most


class Glove(WordVectorObjective, frozen=True):
    """GloVe; a co-occurrence counts 1 / distance, in windows that do not cross sentences (or documents)."""

    vector_size: Annotated[PosInt, "dimension of the word vectors (same as model.hidden_size)"] = 100
    window: Annotated[PosInt, "context words on each side, at most 20"] = 10
    within: Annotated[Literal["sentence", "document"], "boundary that context windows do not cross (lines in the original)"] = (
        "sentence"
    )
    memory: Annotated[PosInt, "memory in MB for counting co-occurrences; the rest is sorted on disk"] = 512
    x_max: Annotated[PosFloat, "co-occurrence count from which the weight is 1 (100 in the paper)"] = 100.0
    alpha: Annotated[PosFloat, "exponent of the weighting function (x / x_max) ** alpha"] = 0.75
    pairs: Annotated[PosInt, "word pairs per step"] = 65_536

    default_learning_rate: ClassVar[float] = 0.05
    default_epochs: ClassVar[float | None] = 15

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
    ) -> "GloveTrainer":
        """Counts co-occurrences in `folder / "counts"` (resumable), then returns the trainer."""
        counts = count_cooccurrences(corpus, folder / "counts", self.window, self.within, self.memory << 20, progress)
        if not len(counts):
            raise UserError(f"{corpus.path} has no co-occurrences of known words; prepare more text, or train a tokenizer on "
                           "it (`bertsmith tokenizer kind=word`)")  # fmt: skip
        lr = self.default_learning_rate if learning_rate is None else learning_rate
        return GloveTrainer(self, counts, len(corpus.tokenizer), int(epochs), lr, seed, device)

    def expected_flops(self, corpus: Corpus) -> float:
        """An upper bound: as if no pair of words occurred twice."""
        offsets = corpus.sentence_offsets if self.within == "sentence" else corpus.document_token_offsets
        lengths = np.diff(offsets).astype(np.float64)
        distances = range(1, self.window + 1)
        return self.count_flops(float(sum(2 * np.maximum(lengths - distance, 0).sum() for distance in distances)))

    def counted_flops(self, result: dict[str, Any], epochs: float) -> float | None:
        """Of the co-occurrences it counted, in both orders."""
        return self.count_flops(2 * result["cooccurrences"] * epochs) if "cooccurrences" in result else None

    def count_flops(self, num_pairs: float) -> float:
        """Dot products of two vectors with their biases."""
        return 2 * (self.vector_size + 2) * num_pairs


class GloveTrainer:
    """AdaGrad over shards of the co-occurrence counts, shuffled anew in each epoch; a round is one shard."""

    chance_loss: ClassVar[float | None] = None  # depends on the counts

    def __init__(
        self,
        config: Glove,
        cooccurrences: CooccurrenceCounts,
        vocab_size: int,
        epochs: int,
        learning_rate: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.config, self.cooccurrences, self.learning_rate = config, cooccurrences, learning_rate
        self.seed, self.device = seed, device
        self.num_parts = max(1, -(-len(cooccurrences) // (PAIRS_PER_ROUND // 2)))
        self.num_rounds, self.tables = epochs * self.num_parts, GloveTables(vocab_size, config.vector_size, seed, device)

    def train_round(self, round_index: int) -> dict[str, float]:
        epoch, shard_index = divmod(round_index, self.num_parts)
        shard = int(permutation(self.num_parts, self.seed, Stream.GLOVE_SHARDS, epoch)[shard_index])
        i, j, x = self._load_pairs(shard, round_index)
        loss_sum, config = torch.zeros((), dtype=torch.float64, device=self.device), self.config
        for batch in batch_slices(len(x), config.pairs):
            loss_sum += self.tables.step(i[batch], j[batch], x[batch], self.learning_rate, config.x_max, config.alpha)
        if not math.isfinite(loss := float(loss_sum) / len(x)):
            raise UserError(
                f"the loss is not finite in round {round_index + 1}; lower train.learning_rate ({self.learning_rate:g})"
            )
        return {"loss": loss, "learning_rate": self.learning_rate, "epoch": epoch + 1, "pairs": len(x)}

    def state_dict(self) -> dict[str, Tensor]:
        return self.tables.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.tables.load_state_dict(state)

    def build_model(self) -> tuple[Model, dict[str, Any]]:
        vectors = self.tables.vectors.cpu()
        model = Model(bag_of_vectors(*vectors.shape), init_weights=False)
        unseen = torch.ones(len(vectors), dtype=torch.bool)
        for shard in range(self.num_parts):
            entries = self.cooccurrences.shard(shard, self.num_parts)
            unseen[entries["i"].astype(np.int64)] = unseen[entries["j"].astype(np.int64)] = False
        vectors[unseen] = 0  # words without co-occurrences were never trained: their random initial vectors are noise
        model.encoder.word_embeddings.weight.data = vectors.contiguous()
        return model.eval(), {
            "cooccurrences": len(self.cooccurrences),
            "vector_size": vectors.shape[1],
            "words": int((~unseen).sum()),
        }

    def _load_pairs(self, shard: int, round_index: int) -> tuple[Tensor, Tensor, Tensor]:
        """(i, j, x) of a shard, shuffled: both orders of each pair, one of a word with itself."""
        entries = self.cooccurrences.shard(shard, self.num_parts)
        off_diagonal = entries[entries["i"] != entries["j"]]
        i, j = (np.concatenate([entries[a], off_diagonal[b]]).astype(np.int64) for a, b in ("ij", "ji"))
        order = np.argsort(random_bits(self.seed, Stream.GLOVE_PAIRS, round_index, np.arange(len(i))))
        x = np.concatenate([entries["x"], off_diagonal["x"]])[order]
        return self._to_device(i[order]), self._to_device(j[order]), self._to_device(x)

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.device)
