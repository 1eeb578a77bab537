"""Training FLOPs, counted alike for every model: two per multiply-add, and three times the forward pass (backward costs
twice as much as forward)."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.model import Model
from ..objectives import PretrainObjective, WordVectorObjective
from ..planning.step import count_flops
from ..train.objective import Batch

RecurrentState = tuple[Tensor, ...]
TRAIN_FORWARD_RATIO = 3  # forward, gradients of the inputs, gradients of the weights


def train_flops_per_token(
    model: Model, objective: PretrainObjective, batch: Batch[Inputs], recurrent_state: RecurrentState = ()
) -> float:
    """Training FLOPs per token of this batch, with the given recurrent state (memory).

    Counted kernel by kernel in one forward pass, so every matrix product counts: attention, recurrence, convolutions, and
    vocabulary logits at as many positions as the objective predicts. Attention counts all pairs of a sequence, also where
    it is causal. Sums, norms and activations are not counted.
    """
    return TRAIN_FORWARD_RATIO * forward_flops(model, objective, batch, recurrent_state) / batch.num_tokens


def forward_flops(
    model: Model, objective: PretrainObjective, batch: Batch[Inputs], recurrent_state: RecurrentState = ()
) -> int:
    """FLOPs of the forward pass, including all losses of the objective."""
    was_training = model.training
    with torch.no_grad(), FlopCounter() as counter:
        objective.compute_loss(model.eval(), batch, recurrent_state)
    model.train(was_training)
    return counter.flops


class FlopCounter(TorchDispatchMode):
    """Dispatch mode that sums the FLOPs of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += count_flops(func, args, kwargs or {}, out)
        return out


def epoch_flops(objective: WordVectorObjective, corpus: Corpus) -> float:
    """Expected training FLOPs of one epoch of word vectors; for GloVe, which reads co-occurrence counts, an upper bound."""
    return TRAIN_FORWARD_RATIO * objective.expected_flops(corpus)
