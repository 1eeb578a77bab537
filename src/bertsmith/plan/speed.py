"""How long the parts of a run take: on a machine that is only named, from what was measured there."""

from typing import NamedTuple

from ..train.recipe import Train
from .machines import Machine
from .memory import Counted
from .step import Step

MOVES = 2.5  # times the optimizer reads or writes all of weights, gradients and state in an update, the norm counted
ONE_WAY = 1 / 3  # of there and back


class Pace(NamedTuple):
    """Seconds."""

    update: float
    tokens: float  # of an update, not seconds
    start: float  # until the first update is done, beside the update itself
    judged: float  # for a token of an evaluation
    saved: float  # for a byte of a checkpoint
    peak: int | None = None  # bytes that were held at most, where it could be measured


def predicted(counted: Counted, tokens: float, train: Train, machine: Machine, walk: Step) -> Pace:
    """`walk` is the step without recomputing, whose activations tell how much there is to move; `tokens` of a micro-batch."""
    step, memory = counted.step, counted.memory
    products = step.flops / machine.products[train.precision]
    traffic = walk.activations * machine.passes[train.compile] / machine.copy * (step.flops / walk.flops)
    micro = max(products + traffic, step.calls * machine.launch) * tokens / step.tokens
    moved = MOVES * (memory.weights + memory.gradients + memory.optimizer) / machine.copy
    update = train.accumulate * micro + moved
    start = machine.starts[train.compile]
    return Pace(update, tokens * train.accumulate, start, ONE_WAY * micro / tokens, 1 / machine.disk)
