"""How long the parts of a run take: on a machine that is only named, from what was measured there."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..train.config import Train
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


class Phase(NamedTuple):
    length: int
    share: float  # of the run
    pace: Pace
    an_epoch: int | None  # micro-batches; None where there is no corpus


class Course(msgspec.Struct, frozen=True):
    steps: int
    tokens: int
    epochs: float | None  # None where there is no corpus
    tokens_per_second: float  # while it trains
    seconds: float  # all of it
    start: float  # of these, until the first update
    training: float
    judging: float
    saving: float


def followed(train: Train, phases: Sequence[Phase], eval_tokens: float, weights: int, checkpoint: int) -> Course:
    """`eval_tokens` are those of one evaluation, 0 where there is none; sizes are of what is saved before and after a step."""
    usual, first = sum(phase.share * phase.pace.update for phase in phases), phases[0].pace
    judging, saving, start = eval_tokens * first.judged, checkpoint * first.saved, first.start + weights * first.saved
    if train.steps is not None:
        steps = [train.steps * phase.share for phase in phases]
    else:
        often = (judging / train.eval_every if train.eval_every else 0.0) + saving / train.save_every
        left = max(60 * (train.minutes or 0) - start, usual) * usual / (usual + often)
        steps = [left * phase.share / phase.pace.update for phase in phases]
    whole = max(1, round(sum(steps)))
    training = sum(count * phase.pace.update for count, phase in zip(steps, phases, strict=True))
    tokens = sum(count * phase.pace.tokens for count, phase in zip(steps, phases, strict=True))
    judging *= -(-whole // train.eval_every) if train.eval_every else 1
    saving *= len(range(train.save_every, whole, train.save_every)) + 1  # the last step is saved whenever it comes
    return Course(
        steps=whole, tokens=round(tokens), epochs=_epochs(train, steps, phases), tokens_per_second=tokens / training,
        seconds=start + training + judging + saving, start=start, training=training, judging=judging, saving=saving,
    )  # fmt: skip


def _epochs(train: Train, steps: Sequence[float], phases: Sequence[Phase]) -> float | None:
    if any(phase.an_epoch is None for phase in phases):
        return None
    return sum(n * train.accumulate / (phase.an_epoch or 1) for n, phase in zip(steps, phases, strict=True))
