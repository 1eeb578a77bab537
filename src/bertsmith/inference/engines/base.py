"""`Engine`: forward passes of one model, token ids in and NumPy arrays out; whatever library computes them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...corpus.batches import batch_boundaries
from ...errors import UserError
from ...model.folder import EMBEDDING_HEAD as EMBEDDING_HEAD
from ...model.folder import LM_HEAD as LM_HEAD
from ...tasks import Task
from ...tasks.base import EncodedExamples
from ...tasks.similarity import Pooling

if TYPE_CHECKING:
    from .torch import TorchEngine

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Backend = Literal["auto", "torch", "onnx", "openvino"]
Precision = Literal["auto", "fp32", "bf16"]
CAUSAL_EMBEDDINGS = ("adaptive", "char-cnn", "ngram")  # input embeddings of which none depends on a later token
MIN_COSINE = 0.999  # of sentence embeddings in bf16 to those in fp32; below it, precision=auto is fp32


@dataclass(frozen=True)
class ModelFacts:
    """What prediction needs to know of a model's architecture."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    is_causal: bool
    has_decoder: bool
    heads: tuple[str, ...]
    embedding_size: int  # of sentence embeddings: hidden_size, unless dense layers follow the pooling

    @classmethod
    def from_record(cls, model: Mapping[str, Any]) -> "ModelFacts":
        """From the table `model` of config.json, without torch."""
        encoder = model["encoder"]
        embeddings = encoder.get("embeddings")
        causal = [embeddings["kind"] in CAUSAL_EMBEDDINGS] if embeddings else []
        if encoder["num_hidden_layers"]:
            mixers = (encoder["mixer"], (encoder.get("layer_types") or {}).get("mixer"))
            causal += [bool(mixer.get("causal", False)) for mixer in mixers if mixer]
        sizes = (encoder["hidden_size"], encoder["num_hidden_layers"], encoder["max_position_embeddings"])
        heads = model["heads"]
        dense = heads[EMBEDDING_HEAD]["layers"] if EMBEDDING_HEAD in heads else []
        embedding_size = dense[-1]["out_features"] if dense else encoder["hidden_size"]
        is_causal, has_decoder = bool(causal) and all(causal), model.get("decoder") is not None
        return cls(model["vocab_size"], *sizes, is_causal, has_decoder, tuple(heads), embedding_size)

    @property
    def is_causal_lm(self) -> bool:
        """A causal decoder-only model with a language-model head."""
        return self.is_causal and not self.has_decoder and LM_HEAD in self.heads


class Engine(ABC):
    """A loaded model. Each method but `task_outputs` computes one batch; `batch_by_length` divides sequences into batches."""

    backend: Backend
    facts: ModelFacts

    @property
    @abstractmethod
    def device(self) -> Any:
        """Where it computes: a torch.device, or "cpu"."""

    @property
    @abstractmethod
    def compute_precision(self) -> str:
        """The precision in use: `auto` resolved."""

    @property
    def batch_tokens(self) -> int:
        """Default batch size in tokens: small enough for the caches of a CPU."""
        return 2048

    @property
    def num_parameters(self) -> int | None:
        """Number of weights; None if it is not known."""
        return None

    def batch_by_length(self, lengths: Ints, batch_tokens: int | None = None) -> list[Ints]:
        """Indices of the sequences in each batch, shortest first; the budget is at least the longest sequence."""
        order = np.argsort(lengths, kind="stable")
        budget = max(batch_tokens or self.batch_tokens, int(lengths.max(initial=1)))
        return np.split(order, batch_boundaries(lengths[order], budget)) if len(order) else []

    @abstractmethod
    def hidden_states(self, input_ids: Sequence[Ints]) -> list[Floats]:
        """Last hidden states (length, hidden_size) of each sequence."""

    @abstractmethod
    def embed(self, input_ids: Sequence[Ints], pooling: Pooling) -> Floats:
        """Sentence embeddings (sequences, embedding_size); `cls` is the first token, of a causal model the last one."""

    @abstractmethod
    def lm_logits(self, input_ids: Sequence[Ints], positions: Sequence[Ints]) -> list[Floats]:
        """Logits (positions, vocabulary) of the language-model head at these positions of each sequence."""

    @abstractmethod
    def task_outputs(self, task: Task, encoded: EncodedExamples, batch_tokens: int | None = None) -> list[NDArray[Any]]:
        """Outputs of the task's head for each sequence, in order (for each example, where windows are pooled)."""

    @property
    def vector_table(self) -> Floats | None:
        """(vocab_size, vector_size), if a token's hidden state is its row of a table in memory; else None."""
        return None

    def as_torch(self) -> "TorchEngine | None":
        """The engine itself, if torch computes it."""
        return None

    def __str__(self) -> str:
        """Library and precision: `openvino in bf16`."""
        return f"{self.backend} in {self.compute_precision}"


def check_choice(key: str, value: str, choices: Any) -> None:
    """Raises a UserError for a value that the Literal `choices` does not have."""
    if value not in get_args(choices):
        raise UserError(f"{key}={value} is not known; choose from {', '.join(get_args(choices))}")


def random_ids(lengths: Iterable[int], vocab_size: int) -> list[Ints]:
    """Sequences on which engines and precisions are compared: always the same."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab_size, length) for length in lengths]


def lowest_cosine(vectors: Floats, others: Floats) -> float:
    """The lowest cosine similarity of two vectors in the same row; 0 if one is not finite."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(others, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nan_to_num((vectors * others).sum(1) / norms, nan=0.0, posinf=0.0, neginf=0.0).min(initial=1.0))
