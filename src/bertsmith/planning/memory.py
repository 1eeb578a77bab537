"""Memory of a training step: parameters by module, optimizer state, activations, and their peak."""

from math import prod
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from ..model.batch import Inputs
from ..model.model import ModelConfig
from ..objectives import PretrainObjective
from ..train import optim
from ..train.config import TrainConfig
from ..train.objective import Batch
from .machines import Machine
from .step import CostTracker, StepCost, build_meta_model, model_bytes, trace_step

SHRINK_FACTOR = 16  # of each dimension, to run the optimizer on small weights


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Number of parameters by module (`encoder.word_embeddings`, `encoder.stack`, `heads.lm` ...), in the model's order."""
    counts: dict[str, int] = {}
    for name, weight in model.named_parameters():
        part = ".".join(name.split(".")[:2])
        counts[part] = counts.get(part, 0) + weight.numel()
    return counts


def sum_parameters(parts: dict[str, int], prefix: str) -> int:
    """Total of all parts of one top-level module, such as `encoder`."""
    return sum(count for part, count in parts.items() if part.split(".")[0] == prefix)


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor of the optimizer state."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class OptimizerState(NamedTuple):
    """Tensors of the optimizer state, and the temporary memory of an update."""

    tensors: dict[str, TensorSpec]  # by "parameter name/state name"
    update_bytes: int  # temporary, during an update

    @property
    def state_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.tensors.values())


def measure_optimizer_state(config: ModelConfig, train: TrainConfig) -> OptimizerState:
    """Optimizer state of the model, from two optimizer steps on a model with shrunken weights."""
    model = build_meta_model(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    weight_bytes = sum(weight.nbytes for weight in model.parameters())
    _shrink_parameters(model)
    small_weights = dict(model.named_parameters())
    optimizer = train.optimizer.build(optim.build_param_groups(model, train.weight_decay), train.learning_rate)
    for _ in range(2):  # the first step allocates the state
        _fill_grads(model)
        with CostTracker() as tracker:
            optimizer.step()
    specs = {key: _full_size_spec(value, small_weights[key.rpartition("/")[0]], shapes[key.rpartition("/")[0]])
             for key, value in optim.optimizer_state_by_name(optimizer, model).items()}  # fmt: skip
    fraction = tracker.peak_bytes / sum(weight.nbytes for weight in small_weights.values())
    return OptimizerState(specs, int(fraction * weight_bytes))


def _shrink_parameters(model: nn.Module) -> None:
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            shape = [max(1, size // SHRINK_FACTOR) for size in weight.shape]
            setattr(module, name, nn.Parameter(torch.ones(shape, dtype=weight.dtype), weight.requires_grad))


def _fill_grads(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)


def _full_size_spec(value: Tensor, small_weight: Tensor, full_shape: tuple[int, ...]) -> TensorSpec:
    """Spec for the full-size weight; a state tensor of another shape than its weight is scaled in proportion to it."""
    if value.ndim == 0 or value.numel() == 1 != small_weight.numel():
        return TensorSpec(tuple(value.shape), value.dtype)
    if value.shape == small_weight.shape:
        return TensorSpec(full_shape, value.dtype)
    return TensorSpec((value.numel() * prod(full_shape) // small_weight.numel(),), value.dtype)


class MemoryUsage(msgspec.Struct, frozen=True):
    """Bytes on the device, without Python and its libraries."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int  # kept by the encoder for backward, of one micro-batch
    workspace: int  # logits and other temporary tensors, at their peak
    update: int  # temporary tensors of the optimizer
    saving: int  # copies while a checkpoint is written; in host memory where the device has its own
    peak: int
    reserved: int  # about what the system shows: the peak times the allocator's overhead


class MemoryEstimate(NamedTuple):
    """Memory of a training step, with the traced step and optimizer state it is computed from."""

    memory: MemoryUsage
    step: StepCost
    optimizer_state: OptimizerState


def estimate_memory(
    config: ModelConfig, objective: PretrainObjective, batch: Batch[Inputs], train: TrainConfig, machine: Machine
) -> MemoryEstimate:
    """Peak memory: weights and optimizer state, plus the largest of forward/backward, update and saving."""
    model, half_precision = build_meta_model(config), train.precision != "fp32"
    optimizer_state = measure_optimizer_state(config, train)
    step = trace_step(
        config,
        objective,
        batch,
        half_precision=half_precision,
        gradient_checkpointing=train.gradient_checkpointing,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
    )
    weights, (activation_fraction, logits_fraction) = (
        model_bytes(model),
        machine.memory_fractions(train.compile, half_precision),
    )
    gradients = sum(weight.nbytes for weight in model.parameters())
    accumulated_grads = gradients if train.gradient_accumulation_steps > 1 else 0  # of earlier micro-batches
    activations, workspace = (
        int(step.activation_bytes * activation_fraction),
        int(max(step.head_bytes * logits_fraction, step.backward_bytes * activation_fraction)),
    )
    saving = weights + optimizer_state.state_bytes
    peaks = [
        accumulated_grads + activations + workspace,
        gradients + optimizer_state.update_bytes,
        0 if machine.is_gpu else saving,
    ]
    peak = weights + optimizer_state.state_bytes + max(peaks)
    memory = MemoryUsage(
        parameters=weights, gradients=gradients, optimizer=optimizer_state.state_bytes, activations=activations,
        workspace=workspace, update=optimizer_state.update_bytes, saving=saving, peak=peak,
        reserved=int(peak * machine.allocator_overhead),
    )  # fmt: skip
    return MemoryEstimate(memory, step, optimizer_state)
