"""How long the parts of a run take: on a machine that is only named, from what was measured there."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..train.config import TrainConfig
from .machines import Machine
from .memory import MemoryEstimate
from .step import StepCost

OPTIMIZER_PASSES = 2.5  # times the optimizer reads or writes all of weights, gradients and state in an update, the norm counted
FORWARD_FRACTION = 1 / 3  # of there and back


class Throughput(NamedTuple):
    """Seconds."""

    update_seconds: float
    update_tokens: float  # of an update, not seconds
    startup_seconds: float  # until the first update is done, beside the update itself
    eval_seconds_per_token: float  # for a token of an evaluation
    save_seconds_per_byte: float  # for a byte of a checkpoint
    peak_memory: int | None = None  # bytes that were held at most, where it could be measured


def predict_throughput(
    estimate: MemoryEstimate, batch_tokens: float, train: TrainConfig, machine: Machine, uncheckpointed_step: StepCost
) -> Throughput:
    """`walk` is the step without recomputing, whose activations tell how much there is to move; `tokens` of a micro-batch."""
    step, memory = estimate.step, estimate.memory
    products = step.flops / machine.flops_per_second[train.precision]
    traffic = (
        uncheckpointed_step.activation_bytes
        * machine.activation_passes[train.compile]
        / machine.memory_bandwidth
        * (step.flops / uncheckpointed_step.flops)
    )
    micro = max(products + traffic, step.kernel_calls * machine.kernel_launch_seconds) * batch_tokens / step.tokens
    moved = OPTIMIZER_PASSES * (memory.weights + memory.gradients + memory.optimizer) / machine.memory_bandwidth
    update = train.accumulate * micro + moved
    start = machine.startup_seconds[train.compile]
    return Throughput(
        update, batch_tokens * train.accumulate, start, FORWARD_FRACTION * micro / batch_tokens, 1 / machine.disk_bandwidth
    )


class Phase(NamedTuple):
    length: int
    fraction: float  # of the run
    throughput: Throughput
    batches_per_epoch: int | None  # micro-batches; None where there is no corpus


class TimeEstimate(msgspec.Struct, frozen=True):
    steps: int
    tokens: int
    epochs: float | None  # None where there is no corpus
    tokens_per_second: float  # while it trains
    seconds: float  # all of it
    start: float  # of these, until the first update
    training: float
    judging: float
    saving: float


def estimate_time(
    train: TrainConfig, phases: Sequence[Phase], eval_tokens: float, weight_bytes: int, checkpoint_bytes: int
) -> TimeEstimate:
    """`eval_tokens` are those of one evaluation, 0 where there is none; sizes are of what is saved before and after a step."""
    usual, first = sum(phase.fraction * phase.throughput.update_seconds for phase in phases), phases[0].throughput
    judging, saving, start = (
        eval_tokens * first.eval_seconds_per_token,
        checkpoint_bytes * first.save_seconds_per_byte,
        first.startup_seconds + weight_bytes * first.save_seconds_per_byte,
    )
    if train.steps is not None:
        steps = [train.steps * phase.fraction for phase in phases]
    else:
        often = (judging / train.eval_every if train.eval_every else 0.0) + saving / train.save_every
        left = max(60 * (train.minutes or 0) - start, usual) * usual / (usual + often)
        steps = [left * phase.fraction / phase.throughput.update_seconds for phase in phases]
    whole = max(1, round(sum(steps)))
    training = sum(count * phase.throughput.update_seconds for count, phase in zip(steps, phases, strict=True))
    tokens = sum(count * phase.throughput.update_tokens for count, phase in zip(steps, phases, strict=True))
    judging *= -(-whole // train.eval_every) if train.eval_every else 1
    saving *= len(range(train.save_every, whole, train.save_every)) + 1  # the last step is saved whenever it comes
    return TimeEstimate(
        steps=whole, tokens=round(tokens), epochs=_count_epochs(train, steps, phases), tokens_per_second=tokens / training,
        seconds=start + training + judging + saving, start=start, training=training, judging=judging, saving=saving,
    )  # fmt: skip


def _count_epochs(train: TrainConfig, steps: Sequence[float], phases: Sequence[Phase]) -> float | None:
    if any(phase.batches_per_epoch is None for phase in phases):
        return None
    return sum(n * train.accumulate / (phase.batches_per_epoch or 1) for n, phase in zip(steps, phases, strict=True))
