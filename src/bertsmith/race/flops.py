"""What learning costs, counted alike for every member: two operations a multiply-add, and three times what the forward
pass takes, for the way back takes twice as much."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..model.model import Model
from ..model.types import Batch
from ..objectives.base import Objective
from ..plan.ledger import flops_of

Carry = tuple[Tensor, ...]
LEARNING = 3  # times the forward pass: gradients of what was read, and of the weights


def per_token(model: Model, objective: Objective, batch: Batch, carry: Carry = ()) -> float:
    """Operations that learning from this batch takes, for each of its tokens; `carry` is what it remembers.

    Counted while the model reads it once, kernel by kernel, so that any part counts that multiplies matrices: attention,
    recurrence, filters, and scores of the vocabulary for as many words as the objective asks. Attention counts all
    pairs of a sequence, also where it looks one way only. Sums, norms and activations do not count.
    """
    return LEARNING * forward(model, objective, batch, carry) / batch.tokens


def forward(model: Model, objective: Objective, batch: Batch, carry: Carry = ()) -> int:
    """Operations of the forward pass, losses of all parts counted in."""
    training = model.training
    with torch.no_grad(), Products() as products:
        objective.loss(model.eval(), batch, carry)
    model.train(training)
    return products.flops


class Products(TorchDispatchMode):
    """Counts what is multiplied under it."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += flops_of(func, args, kwargs or {}, out)
        return out
