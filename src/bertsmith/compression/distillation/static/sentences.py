"""Sentences of a corpus with the teacher's vectors, and batches of them; batch k is a pure function of (sentences, seed, k)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ....corpus.batches import batch_boundaries
from ....corpus.store import Corpus
from ....inference.engines.torch import TorchEngine
from ....model.batch import Inputs
from ....model.model import Model
from ....model.packing import Layout
from ....rng import Stream, permutation
from ....tasks.similarity import Pooling
from ....tokenization.tokenizer import Tokenizer
from ....train.objective import Batch, Loss
from .table import Matrix, frame

Ints = NDArray[np.int64]
MIN_TOKENS = 3  # known tokens of a sentence


def sample_sentences(corpus: Corpus, count: int, max_tokens: int, seed: int) -> list[Ints]:
    """Token ids of `count` sentences in random order, cut to `max_tokens`; none with fewer than three known tokens."""
    offsets, unknown = corpus.sentence_offsets, corpus.tokenizer.unk_token_id
    sentences: list[Ints] = []
    for index in permutation(len(offsets) - 1, seed, Stream.SAMPLE_ORDER):
        ids = np.asarray(corpus.tokens[offsets[index] : offsets[index + 1]][:max_tokens], np.int64)
        if (ids != unknown).sum() >= MIN_TOKENS:
            sentences.append(ids)
        if len(sentences) == count:
            break
    return sentences


def sentence_vectors(engine: TorchEngine, tokenizer: Tokenizer, sentences: Sequence[Ints], pooling: Pooling) -> Matrix:
    """(sentences, hidden_size): the teacher's vectors."""
    framed = frame(tokenizer, list(sentences))
    vectors = np.zeros((len(framed), engine.facts.hidden_size), np.float32)
    for batch in engine.batch_by_length(np.array([len(ids) for ids in framed], np.int64)):
        vectors[batch] = engine.embed([framed[i] for i in batch], pooling)
    return vectors


@dataclass(frozen=True)
class SentenceBatches:
    """Batches of sentences without unknown tokens, of at most `batch_tokens` tokens, with their target vectors."""

    sentences: list[Ints]
    targets: Matrix  # (sentences, vector_size)
    batch_tokens: int
    seed: int
    cache: dict[int, list[Ints]] = field(default_factory=dict, compare=False, repr=False)  # of the current epoch

    @cached_property
    def lengths(self) -> Ints:
        return np.array([len(ids) for ids in self.sentences], np.int64)

    @cached_property
    def batches_per_epoch(self) -> int:
        return len(self.split_epoch(0))

    def __call__(self, k: int, fraction_done: float = 0.0) -> Batch[Inputs]:
        """Batch k, counted over all epochs; epochs may differ by a batch, whose place the first takes again."""
        epoch, index = divmod(k, self.batches_per_epoch)
        if epoch not in self.cache:
            self.cache.clear()
            self.cache[epoch] = self.split_epoch(epoch)
        return self.build(self.cache[epoch][index % len(self.cache[epoch])])

    def build(self, indices: Ints) -> Batch[Inputs]:
        ids = torch.from_numpy(np.concatenate([self.sentences[i] for i in indices]))
        inputs = Inputs(ids, Layout.from_lengths(self.lengths[indices]))
        return Batch(inputs, {"vectors": torch.from_numpy(self.targets[indices])}, {"cosine": len(indices)})

    def split_epoch(self, epoch: int) -> list[Ints]:
        order = permutation(len(self.sentences), self.seed, Stream.EXAMPLE_ORDER, epoch)
        return np.split(order, batch_boundaries(self.lengths[order], max(self.batch_tokens, int(self.lengths.max()))))


class SentenceVectorObjective:
    """1 - cosine of the mean of a sentence's token vectors and the teacher's vector, summed over sentences."""

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        pooled = batch.inputs.layout.mean_pool(model(batch.inputs).float())
        return Loss({"cosine": (1 - F.cosine_similarity(pooled, batch.targets["vectors"])).sum()})
