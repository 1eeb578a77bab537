"""What a model learns from: how its corpus is read, how a batch is made, and what it costs to be wrong."""

from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.collate import Arrays
from ..corpus.loader import Batches
from ..corpus.store import Corpus
from ..model.batch import Batch, Inputs
from ..model.heads import HeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..train.loss import Loss

Ints = NDArray[np.int64]


class Objective(Protocol):
    least: ClassVar[int]  # sentences a document must have to be read
    hides: ClassVar[bool]  # words are hidden, so that a model of it fills masks

    def heads(self) -> dict[str, HeadConfig]:
        """The heads it needs, by name."""
        ...

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        """How these documents are read, in sequences of at most `length` and batches of at most `tokens`."""
        ...

    def batch(self, arrays: Arrays) -> Batch:
        """What a model takes, from what a worker made."""
        ...

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        """Sums over the targets of each part."""
        ...


def packed(arrays: Arrays) -> Inputs:
    segments = None if arrays.segments is None else torch.from_numpy(arrays.segments)
    return Inputs(torch.from_numpy(arrays.tokens), Layout.of(torch.from_numpy(arrays.lengths)), segments)
