"""`Engine`: forward passes of one model, token ids in and NumPy arrays out; whatever library computes them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...corpus.batches import batch_boundaries
from ...errors import UserError
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


@dataclass(frozen=True)
class ModelFacts:
    """What prediction needs to know of a model's architecture."""

    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    is_causal: bool
    has_decoder: bool
    heads: tuple[str, ...]

    @classmethod
    def from_record(cls, model: Mapping[str, Any]) -> "ModelFacts":
        """From the table `model` of config.json, without torch."""
        encoder = model["encoder"]
        parts = [encoder.get("embeddings")]
        if encoder["num_hidden_layers"]:
            parts += [encoder["mixer"], (encoder.get("layer_types") or {}).get("mixer")]
        causal = [bool(part.get("causal", False)) for part in parts if part]
        sizes = (encoder[name] for name in ("hidden_size", "num_hidden_layers", "max_position_embeddings"))
        return cls(*sizes, bool(causal) and all(causal), model.get("decoder") is not None, tuple(model["heads"]))

    @property
    def is_causal_lm(self) -> bool:
        """A causal decoder-only model with a language-model head."""
        return self.is_causal and not self.has_decoder and LM_HEAD in self.heads


class Engine(ABC):
    """A loaded model. Each method but `task_outputs` computes one batch; `batch_by_length` divides sequences into batches."""

    backend: ClassVar[Backend]
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
        """Pooled hidden states (sequences, hidden_size); `cls` is the first token, of a causal model the last one."""

    @abstractmethod
    def lm_logits(self, input_ids: Sequence[Ints], positions: Sequence[Ints]) -> list[Floats]:
        """Logits (positions, vocabulary) of the language-model head at these positions of each sequence."""

    @abstractmethod
    def task_outputs(self, task: Task, encoded: EncodedExamples, batch_tokens: int | None = None) -> list[NDArray[Any]]:
        """Outputs of the task's head for each sequence, in order (for each example, where windows are pooled)."""

    def as_torch(self) -> "TorchEngine | None":
        """The engine itself, if torch computes it."""
        return None


def check_choice(key: str, value: str, choices: Any) -> None:
    """Raises a UserError for a value that the Literal `choices` does not have."""
    if value not in get_args(choices):
        raise UserError(f"{key}={value} is not known; choose from {', '.join(get_args(choices))}")


def pad_batch(sequences: Iterable[Ints], pad_id: int = 0) -> tuple[Ints, Ints]:
    """Right-padded ids and attention mask, (sequences, max_length) each."""
    rows = list(sequences)
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = (np.arange(lengths.max(initial=1)) < lengths[:, None]).astype(np.int64)
    ids = np.full(mask.shape, pad_id, np.int64)
    ids[mask.astype(bool)] = np.concatenate(rows)
    return ids, mask
