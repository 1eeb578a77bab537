"""Vectors of the vocabulary: each token through the encoder, principal components, frequency weights."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....inference.engines.torch import TorchEngine
from ....tasks.similarity import Pooling
from ....tokenization.tokenizer import Tokenizer

Matrix = NDArray[np.float32]
BATCH = 1024  # tokens of the vocabulary


@dataclass(frozen=True)
class Projection:
    """Principal components of some vectors: x -> (x - mean) components."""

    mean: Matrix  # (size,)
    components: Matrix  # (size, vector_size): orthonormal columns, the largest variance first

    @classmethod
    def fit(cls, vectors: Matrix, vector_size: int) -> "Projection":
        """Components of largest variance; each has its largest entry positive, so that the result is unique."""
        mean = vectors.mean(0, dtype=np.float64)
        centered = vectors - mean
        _, basis = np.linalg.eigh(centered.T @ centered)
        components = basis[:, ::-1][:, :vector_size]
        signs = np.sign(components[np.abs(components).argmax(0), np.arange(components.shape[1])])
        return cls(mean.astype(np.float32), (components * signs).astype(np.float32))

    def __call__(self, vectors: Matrix) -> Matrix:
        return np.asarray((vectors - self.mean) @ self.components, np.float32)


def token_vectors(engine: TorchEngine, tokenizer: Tokenizer, pooling: Pooling) -> Matrix:
    """(vocab_size, hidden_size): the pooled vector of [CLS] token [SEP] for each token; zero for special tokens."""
    vectors = np.zeros((len(tokenizer), engine.facts.hidden_size), np.float32)
    ids = tokenizer.non_special_ids
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        vectors[batch] = engine.embed(frame(tokenizer, batch[:, None]), pooling)
    return vectors


def frame(tokenizer: Tokenizer, sequences: NDArray[np.int64] | list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """[CLS] ... [SEP] around each sequence of ids."""
    return [np.concatenate([[tokenizer.cls_token_id], ids, [tokenizer.sep_token_id]]) for ids in sequences]


def zipf_probabilities(tokenizer: Tokenizer) -> NDArray[np.float64]:
    """(vocab_size,): 1 / rank, normalized, taking the order of the vocabulary for that of frequency; 0 for special tokens."""
    ids = tokenizer.non_special_ids
    probabilities = np.zeros(len(tokenizer))
    probabilities[ids] = 1 / np.arange(1, len(ids) + 1)
    return probabilities / probabilities.sum()


def corpus_probabilities(tokenizer: Tokenizer, tokens: NDArray[np.integer]) -> NDArray[np.float64]:
    """(vocab_size,): unigram probabilities of the tokens of a corpus, one added to each count; 0 for special tokens."""
    counts = np.bincount(tokens, minlength=len(tokenizer)).astype(np.float64)
    probabilities = np.zeros(len(tokenizer))
    probabilities[tokenizer.non_special_ids] = counts[tokenizer.non_special_ids] + 1
    return probabilities / probabilities.sum()


def sif_weights(probabilities: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """a / (a + p), the weight of a token in the mean of a sentence (Arora et al. 2017, algorithm 1); ones if a = 0."""
    return a / (a + probabilities) if a else np.ones_like(probabilities)
