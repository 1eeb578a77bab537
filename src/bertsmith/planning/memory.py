"""How many numbers a model learns, by its parts."""

from math import prod
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from ..model.batch import Batch
from ..model.model import ModelConfig
from ..objectives import ObjectiveConfig
from ..train import optim
from ..train.config import Train
from .machines import Machine
from .step import Ledger, Step, blank, size, walked


def count_parameters(model: nn.Module) -> dict[str, int]:
    """`encoder.tokens`, `encoder.stack`, `heads.words` and so on, in the model's order."""
    found: dict[str, int] = {}
    for name, weight in model.named_parameters():
        part = ".".join(name.split(".")[:2])
        found[part] = found.get(part, 0) + weight.numel()
    return found


def parameters_below(parts: dict[str, int], prefix: str) -> int:
    """Of all parts of the encoder, say."""
    return sum(count for part, count in parts.items() if part.split(".")[0] == prefix)


NARROWER = 16


class Slot(NamedTuple):
    """A tensor of its state."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Kept(NamedTuple):
    slots: dict[str, Slot]  # by the name of the weight and its own
    update: int  # bytes that come and go while the weights move

    @property
    def state(self) -> int:
        return sum(slot.bytes for slot in self.slots.values())


def optimizer_state(config: ModelConfig, train: Train) -> Kept:
    """By two of its steps."""
    model = blank(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    whole = sum(weight.nbytes for weight in model.parameters())
    _narrow(model)
    small = dict(model.named_parameters())
    built = train.optimizer.build(optim.groups(model, train.decay), train.rate)
    for _ in range(2):  # the first step makes the state
        _give_gradients(model)
        with Ledger() as ledger:
            built.step()
    slots = {key: _widened(value, small[key.rpartition("/")[0]], shapes[key.rpartition("/")[0]])
             for key, value in optim.by_name(built, model).items()}  # fmt: skip
    share = ledger.most / sum(weight.nbytes for weight in small.values())
    return Kept(slots, int(share * whole))


def _narrow(model: nn.Module) -> None:
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            shape = [max(1, size // NARROWER) for size in weight.shape]
            setattr(module, name, nn.Parameter(torch.ones(shape, dtype=weight.dtype), weight.requires_grad))


def _give_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)


def _widened(value: Tensor, small: Tensor, shape: tuple[int, ...]) -> Slot:
    """As the whole weight would have it; a tensor of another shape than its weight grows as the weight does."""
    if value.ndim == 0 or value.numel() == 1 != small.numel():
        return Slot(tuple(value.shape), value.dtype)
    if value.shape == small.shape:
        return Slot(shape, value.dtype)
    return Slot((value.numel() * prod(shape) // small.numel(),), value.dtype)


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


def estimate_memory(config: ModelConfig, objective: ObjectiveConfig, batch: Batch, train: Train, machine: Machine) -> Counted:
    model, half = blank(config), train.precision != "fp32"
    held = optimizer_state(config, train)
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
