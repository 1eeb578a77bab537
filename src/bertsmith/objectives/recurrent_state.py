"""Segment-level recurrence over batches (Transformer-XL, Dai et al. 2019): the memory of texts that continue in the next
batch."""

import torch
from torch import Tensor

from ..corpus.collate import NumpyBatch
from ..model.batch import Inputs
from ..model.model import Model
from ..model.segment_memory import SegmentMemory
from ..train.objective import Batch

STREAM = "stream_positions"
RecurrentState = tuple[Tensor, ...]


def stream_targets(arrays: NumpyBatch) -> dict[str, Tensor]:
    """Batch target (sequences, 2): corpus position where each segment ends, and where the segment it continues ended."""
    return {} if arrays.stream_positions is None else {STREAM: torch.from_numpy(arrays.stream_positions)}


def restore_memory(model: Model, batch: Batch[Inputs], recurrent_state: RecurrentState) -> SegmentMemory | None:
    """The memory at the start of this batch, from the state of the previous one; None without streams or memory.

    Each sequence keeps its memory only if it continues the segment the memory is of: after skipped updates or batches,
    memories start empty.
    """
    stream = batch.targets.get(STREAM)
    if stream is None or not model.uses_memory:
        return None
    num_sequences = stream.shape[0]
    if not recurrent_state or len(recurrent_state[0]) < num_sequences:
        return SegmentMemory.empty(num_sequences, stream.device)
    segment_ends, num_seen, *layers = (tensor[:num_sequences] for tensor in recurrent_state)
    return SegmentMemory(torch.where(stream[:, 1] == segment_ends, num_seen, 0), tuple(layers))


def next_recurrent_state(memory: SegmentMemory | None, batch: Batch[Inputs]) -> RecurrentState:
    """State for the next batch: segment ends, number of tokens seen, and the hidden states of each layer."""
    if memory is None:
        return ()
    next_memory = memory.advance(batch.inputs.layout)
    return (batch.targets[STREAM][:, 0], next_memory.num_seen, *next_memory.layers)
