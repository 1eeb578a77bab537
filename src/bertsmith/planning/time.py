"""Time of a run: the throughput predicted for a known machine, and from it (or a measured one) steps and seconds."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..train.config import TrainConfig
from .machines import Machine
from .memory import MemoryEstimate
from .step import StepCost

OPTIMIZER_PASSES = 2.5  # how often an update reads or writes all weights, gradients and state, gradient norm included
FORWARD_FRACTION = 1 / 3  # of forward and backward


class Throughput(NamedTuple):
    """Speed of training, evaluation and saving on one machine."""

    update_seconds: float
    update_tokens: float
    startup_seconds: float  # until the end of the first update, without the update itself
    eval_seconds_per_token: float
    save_seconds_per_byte: float
    peak_memory: int | None = None  # bytes; None where it was not measured


def predict_throughput(
    estimate: MemoryEstimate, batch_tokens: float, train: TrainConfig, machine: Machine, uncheckpointed_step: StepCost
) -> Throughput:
    """Roofline estimate: matmul time plus memory traffic of activations, or launch overhead where that is larger.

    `uncheckpointed_step` is traced without gradient checkpointing: its activations give the memory traffic.
    """
    step, memory = estimate.step, estimate.memory
    matmul_seconds = step.flops / machine.flops_per_second[train.precision]
    traffic_seconds = (
        uncheckpointed_step.activation_bytes
        * machine.activation_passes[train.compile]
        / machine.memory_bandwidth
        * (step.flops / uncheckpointed_step.flops)
    )
    micro_batch_seconds = (
        max(matmul_seconds + traffic_seconds, step.kernel_calls * machine.kernel_launch_seconds) * batch_tokens / step.tokens
    )
    optimizer_seconds = OPTIMIZER_PASSES * (memory.parameters + memory.gradients + memory.optimizer) / machine.memory_bandwidth
    update_seconds = train.gradient_accumulation_steps * micro_batch_seconds + optimizer_seconds
    startup_seconds = machine.startup_seconds[train.compile]
    return Throughput(
        update_seconds,
        batch_tokens * train.gradient_accumulation_steps,
        startup_seconds,
        FORWARD_FRACTION * micro_batch_seconds / batch_tokens,
        1 / machine.disk_bandwidth,
    )


class Phase(NamedTuple):
    """One sequence length of a run."""

    length: int
    fraction: float  # of the run
    throughput: Throughput
    batches_per_epoch: int | None  # micro-batches; None where there is no corpus


class TimeEstimate(msgspec.Struct, frozen=True):
    """Steps, tokens and seconds of a run."""

    steps: int
    tokens: int
    epochs: float | None  # None where there is no corpus
    tokens_per_second: float  # while it trains
    seconds: float  # in all
    startup: float  # of these, until the first update
    training: float
    evaluation: float
    saving: float


def estimate_time(
    train: TrainConfig, phases: Sequence[Phase], eval_tokens: float, weight_bytes: int, checkpoint_bytes: int
) -> TimeEstimate:
    """Time of a run with these phases.

    eval_tokens: tokens of one evaluation, 0 without; weight_bytes: the checkpoint before the first step.
    """
    mean_update_seconds, first = sum(phase.fraction * phase.throughput.update_seconds for phase in phases), phases[0].throughput
    eval_seconds, save_seconds, startup_seconds = (
        eval_tokens * first.eval_seconds_per_token,
        checkpoint_bytes * first.save_seconds_per_byte,
        first.startup_seconds + weight_bytes * first.save_seconds_per_byte,
    )
    if train.steps is not None:
        steps = [train.steps * phase.fraction for phase in phases]
    else:
        overhead_per_step = (eval_seconds / train.eval_every if train.eval_every else 0.0) + save_seconds / train.save_every
        train_seconds = (
            max(60 * (train.minutes or 0) - startup_seconds, mean_update_seconds)
            * mean_update_seconds
            / (mean_update_seconds + overhead_per_step)
        )
        steps = [train_seconds * phase.fraction / phase.throughput.update_seconds for phase in phases]
    num_steps = max(1, round(sum(steps)))
    training_seconds = sum(count * phase.throughput.update_seconds for count, phase in zip(steps, phases, strict=True))
    tokens = sum(count * phase.throughput.update_tokens for count, phase in zip(steps, phases, strict=True))
    eval_seconds *= -(-num_steps // train.eval_every) if train.eval_every else 1
    save_seconds *= len(range(train.save_every, num_steps, train.save_every)) + 1  # the last step is saved whenever it comes
    return TimeEstimate(
        steps=num_steps, tokens=round(tokens), epochs=_count_epochs(train, steps, phases),
        tokens_per_second=tokens / training_seconds, seconds=startup_seconds + training_seconds + eval_seconds + save_seconds,
        startup=startup_seconds, training=training_seconds, evaluation=eval_seconds, saving=save_seconds,
    )  # fmt: skip


def _count_epochs(train: TrainConfig, steps: Sequence[float], phases: Sequence[Phase]) -> float | None:
    if any(phase.batches_per_epoch is None for phase in phases):
        return None
    return sum(
        n * train.gradient_accumulation_steps / (phase.batches_per_epoch or 1) for n, phase in zip(steps, phases, strict=True)
    )
