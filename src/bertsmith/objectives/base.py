"""What a model learns from: how its corpus is read, how a batch is made, and what it costs to be wrong."""

from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.collate import NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..model.batch import Batch, Inputs
from ..model.heads import HeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..train.loss import Loss

Ints = NDArray[np.int64]


class PretrainObjective(Protocol):
    min_sentences: ClassVar[int]  # sentences a document must have to be read
    can_fill_mask: ClassVar[bool]  # words are hidden, so that a model of it fills masks

    def heads(self) -> dict[str, HeadConfig]:
        """The heads it needs, by name."""
        ...

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        """How these documents are read, in sequences of at most `length` and batches of at most `tokens`."""
        ...

    def to_batch(self, arrays: NumpyBatch) -> Batch:
        """What a model takes, from what a worker made."""
        ...

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        """Sums over the targets of each part."""
        ...


def to_inputs(arrays: NumpyBatch) -> Inputs:
    segments = None if arrays.token_type_ids is None else torch.from_numpy(arrays.token_type_ids)
    return Inputs(torch.from_numpy(arrays.input_ids), Layout.from_lengths(torch.from_numpy(arrays.lengths)), segments)
