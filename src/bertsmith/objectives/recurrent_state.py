"""Texts that go on from batch to batch: what a model remembers of them is carried along, and of no others."""

import torch
from torch import Tensor

from ..corpus.collate import Arrays
from ..model.batch import Batch
from ..model.model import Model
from ..model.segment_memory import Memory

FLOW = "flow"
Carry = tuple[Tensor, ...]


def flowing(arrays: Arrays) -> dict[str, Tensor]:
    """For a batch's targets: (sequences, 2), where each ends in the corpus, and where the one it goes on from did."""
    return {} if arrays.flow is None else {FLOW: torch.from_numpy(arrays.flow)}


def recalled(model: Model, batch: Batch, carry: Carry) -> Memory | None:
    """What the model remembers before this batch, by what the last one carried; None, where nothing can go on.

    A sequence remembers only the one that it says it goes on from: after an update that was skipped, or batches that were
    jumped over, memories begin anew.
    """
    flow = batch.targets.get(FLOW)
    if flow is None or not model.remembers:
        return None
    rows = flow.shape[0]
    if not carry or len(carry[0]) < rows:
        return Memory.empty(rows, flow.device)
    ends, seen, *layers = (tensor[:rows] for tensor in carry)
    return Memory(torch.where(flow[:, 1] == ends, seen, 0), tuple(layers))


def carried(memory: Memory | None, batch: Batch) -> Carry:
    """What the loss of the next batch is to be handed."""
    if memory is None:
        return ()
    after = memory.after(batch.inputs.layout)
    return (batch.targets[FLOW][:, 0], after.seen, *after.layers)
