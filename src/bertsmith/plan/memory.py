"""The most memory a run holds at once: when the gradients come back, when the weights move, or when both are saved."""

from typing import NamedTuple

import msgspec

from ..model.model import ModelConfig
from ..model.types import Batch
from ..objectives import ObjectiveConfig
from ..train.recipe import Train
from .machines import Machine
from .optimizer import Kept, kept
from .step import Step, blank, size, walked


class Memory(msgspec.Struct, frozen=True):
    """Bytes on the device; Python and its libraries are not counted."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # that the encoder keeps of a micro-batch
    passing: int  # logits, and what else is there only for a moment, when most is there
    update: int  # that the optimizer needs while it moves the weights
    saving: int  # copies while a checkpoint is written: of the host's memory, where the device has its own
    peak: int
    held: int  # that the system sees, about: allocators keep what is freed


class Counted(NamedTuple):
    memory: Memory
    step: Step
    kept: Kept


def counted(config: ModelConfig, objective: ObjectiveConfig, batch: Batch, train: Train, machine: Machine) -> Counted:
    model, half = blank(config), train.precision != "fp32"
    held = kept(config, train)
    step = walked(config, objective, batch, half=half, recompute=train.recompute, accumulate=train.accumulate)
    weights, (share, logits) = size(model), machine.kept(train.compile, half)
    gradients = sum(weight.nbytes for weight in model.parameters())
    there = gradients if train.accumulate > 1 else 0  # from the micro-batches before
    activations, passing = int(step.activations * share), int(max(step.logits * logits, step.back * share))
    saving = weights + held.state
    moments = [there + activations + passing, gradients + held.update, 0 if machine.gpu else saving]
    peak = weights + held.state + max(moments)
    memory = Memory(
        weights=weights, gradients=gradients, optimizer=held.state, activations=activations, passing=passing,
        update=held.update, saving=saving, peak=peak, held=int(peak * machine.gaps),
    )  # fmt: skip
    return Counted(memory, step, held)
