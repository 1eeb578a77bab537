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
from ..train.config import TrainConfig
from .machines import Machine
from .step import CostTracker, StepCost, build_meta_model, model_bytes, trace_step


def count_parameters(model: nn.Module) -> dict[str, int]:
    """`encoder.tokens`, `encoder.stack`, `heads.words` and so on, in the model's order."""
    found: dict[str, int] = {}
    for name, weight in model.named_parameters():
        part = ".".join(name.split(".")[:2])
        found[part] = found.get(part, 0) + weight.numel()
    return found


def sum_parameters(parts: dict[str, int], prefix: str) -> int:
    """Of all parts of the encoder, say."""
    return sum(count for part, count in parts.items() if part.split(".")[0] == prefix)


SHRINK_FACTOR = 16


class TensorSpec(NamedTuple):
    """A tensor of its state."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class OptimizerState(NamedTuple):
    tensors: dict[str, TensorSpec]  # by the name of the weight and its own
    update_bytes: int  # bytes that come and go while the weights move

    @property
    def state_bytes(self) -> int:
        return sum(slot.nbytes for slot in self.tensors.values())


def measure_optimizer_state(config: ModelConfig, train: TrainConfig) -> OptimizerState:
    """By two of its steps."""
    model = build_meta_model(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    whole = sum(weight.nbytes for weight in model.parameters())
    _shrink_parameters(model)
    small = dict(model.named_parameters())
    built = train.optimizer.build(optim.build_param_groups(model, train.decay), train.rate)
    for _ in range(2):  # the first step makes the state
        _fill_grads(model)
        with CostTracker() as ledger:
            built.step()
    slots = {key: _full_size_spec(value, small[key.rpartition("/")[0]], shapes[key.rpartition("/")[0]])
             for key, value in optim.optimizer_state_by_name(built, model).items()}  # fmt: skip
    share = ledger.peak_bytes / sum(weight.nbytes for weight in small.values())
    return OptimizerState(slots, int(share * whole))


def _shrink_parameters(model: nn.Module) -> None:
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            shape = [max(1, size // SHRINK_FACTOR) for size in weight.shape]
            setattr(module, name, nn.Parameter(torch.ones(shape, dtype=weight.dtype), weight.requires_grad))


def _fill_grads(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)


def _full_size_spec(value: Tensor, small_weight: Tensor, full_shape: tuple[int, ...]) -> TensorSpec:
    """As the whole weight would have it; a tensor of another shape than its weight grows as the weight does."""
    if value.ndim == 0 or value.numel() == 1 != small_weight.numel():
        return TensorSpec(tuple(value.shape), value.dtype)
    if value.shape == small_weight.shape:
        return TensorSpec(full_shape, value.dtype)
    return TensorSpec((value.numel() * prod(full_shape) // small_weight.numel(),), value.dtype)


class MemoryUsage(msgspec.Struct, frozen=True):
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


class MemoryEstimate(NamedTuple):
    memory: MemoryUsage
    step: StepCost
    optimizer_state: OptimizerState


def estimate_memory(
    config: ModelConfig, objective: ObjectiveConfig, batch: Batch, train: TrainConfig, machine: Machine
) -> MemoryEstimate:
    model, half = build_meta_model(config), train.precision != "fp32"
    held = measure_optimizer_state(config, train)
    step = trace_step(
        config,
        objective,
        batch,
        half_precision=half,
        gradient_checkpointing=train.recompute,
        gradient_accumulation_steps=train.accumulate,
    )
    weights, (share, logits) = model_bytes(model), machine.memory_fractions(train.compile, half)
    gradients = sum(weight.nbytes for weight in model.parameters())
    there = gradients if train.accumulate > 1 else 0  # from the micro-batches before
    activations, passing = int(step.activation_bytes * share), int(max(step.head_bytes * logits, step.backward_bytes * share))
    saving = weights + held.state_bytes
    moments = [there + activations + passing, gradients + held.update_bytes, 0 if machine.is_gpu else saving]
    peak = weights + held.state_bytes + max(moments)
    memory = MemoryUsage(
        weights=weights, gradients=gradients, optimizer=held.state_bytes, activations=activations, passing=passing,
        update=held.update_bytes, saving=saving, peak=peak, held=int(peak * machine.allocator_overhead),
    )  # fmt: skip
    return MemoryEstimate(memory, step, held)
