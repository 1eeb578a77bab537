"""The loss and reports of a model on batches it does not learn from."""

from collections.abc import Iterable

import torch
from torch import Tensor

from .devices import Prepared
from .loss import Batch, Objective, checked
from .tally import Meter


@torch.no_grad()
def judged(objective: Objective, batches: Iterable[Batch], prepared: Prepared) -> dict[str, float]:
    """Means over all batches, without dropout; the model is left in the mode it was in."""
    model, device, autocast, _ = prepared
    training, meter = model.training, Meter()
    carry: tuple[Tensor, ...] = ()
    model.eval()
    try:
        for batch in batches:
            with autocast():
                loss = checked(objective.loss(model, batch.to(device), carry), batch)
            meter.add_loss(loss, batch)
            carry = loss.carry
    finally:
        model.train(training)
    return meter.read().means()
