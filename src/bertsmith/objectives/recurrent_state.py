"""Texts that go on from batch to batch: what a model remembers of them is carried along, and of no others."""

import torch
from torch import Tensor

from ..corpus.collate import NumpyBatch
from ..model.batch import Batch
from ..model.model import Model
from ..model.segment_memory import SegmentMemory

STREAM = "flow"
RecurrentState = tuple[Tensor, ...]


def stream_targets(arrays: NumpyBatch) -> dict[str, Tensor]:
    """For a batch's targets: (sequences, 2), where each ends in the corpus, and where the one it goes on from did."""
    return {} if arrays.stream_positions is None else {STREAM: torch.from_numpy(arrays.stream_positions)}


def restore_memory(model: Model, batch: Batch, recurrent_state: RecurrentState) -> SegmentMemory | None:
    """What the model remembers before this batch, by what the last one carried; None, where nothing can go on.

    A sequence remembers only the one that it says it goes on from: after an update that was skipped, or batches that were
    jumped over, memories begin anew.
    """
    flow = batch.targets.get(STREAM)
    if flow is None or not model.uses_memory:
        return None
    rows = flow.shape[0]
    if not recurrent_state or len(recurrent_state[0]) < rows:
        return SegmentMemory.empty(rows, flow.device)
    ends, seen, *layers = (tensor[:rows] for tensor in recurrent_state)
    return SegmentMemory(torch.where(flow[:, 1] == ends, seen, 0), tuple(layers))


def next_recurrent_state(memory: SegmentMemory | None, batch: Batch) -> RecurrentState:
    """What the loss of the next batch is to be handed."""
    if memory is None:
        return ()
    after = memory.advance(batch.inputs.layout)
    return (batch.targets[STREAM][:, 0], after.num_seen, *after.layers)
