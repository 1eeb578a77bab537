"""The interface of pre-training objectives: heads, batches of a corpus, and the loss."""

from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..corpus.collate import NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.heads import HeadConfig
from ..model.packing import Layout
from ..train.objective import Batch, Objective

Ints = NDArray[np.int64]


class PretrainObjective(Objective, Protocol):
    """The trainer's Objective, with its heads and the batches it reads from a corpus; also its config (`objective`)."""

    min_sentences: ClassVar[int]  # documents with fewer sentences are not used
    can_fill_mask: ClassVar[bool]  # whether the trained model can fill [MASK]
    token_loss: ClassVar[str]  # the metric that is the mean NLL of tokens, to compare with the unigram baseline

    def heads(self) -> dict[str, HeadConfig]:
        """Configs of the heads it needs, by name."""
        ...

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        """Batches of these documents: sequences of at most `max_length`, batches of at most `batch_tokens` tokens."""
        ...

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        """Converts a collated batch of numpy arrays to tensors."""
        ...


def to_inputs(arrays: NumpyBatch) -> Inputs:
    """Model inputs of a collated batch: packed input_ids, layout and token types."""
    token_type_ids = None if arrays.token_type_ids is None else torch.from_numpy(arrays.token_type_ids)
    return Inputs(torch.from_numpy(arrays.input_ids), Layout.from_lengths(torch.from_numpy(arrays.lengths)), token_type_ids)
