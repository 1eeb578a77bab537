"""What a run trains with: the model on its device, mixed precision, compilation, ranks and the optimizer."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..device import resolve_device
from ..errors import UserError
from ..runs import world_size
from . import distributed, optim
from .config import TrainConfig
from .param_groups import ParamScheduleFn, uniform_schedule

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TrainSetup:
    """A model ready to be trained: on its device, with its autocast context, gradient scaler, ranks and optimizer."""

    config: TrainConfig
    model: nn.Module
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]]
    scaler: torch.amp.GradScaler  # disabled unless the precision is fp16
    ranks: distributed.Ranks
    optimizer: Optimizer


def prepare(model: nn.Module, config: TrainConfig, param_schedule: ParamScheduleFn = uniform_schedule) -> TrainSetup:
    """Moves the model to its device, compiles it if `train.compile` is set (both in place), joins the ranks of torchrun, and
    builds the optimizer.

    A model with a method `compile_parts()` compiles itself by that instead.
    param_schedule: learning rate scale and unfreezing by parameter name.
    """
    device = _select_device(config.device)
    if config.precision == "fp16" and device.type != "cuda":
        raise UserError("train.precision=fp16 needs a CUDA device; on a CPU set train.precision=bf16 or fp32")
    model = model.to(device)
    if config.compile:
        getattr(model, "compile_parts", lambda: model.compile(dynamic=True))()
    scaler = torch.amp.GradScaler("cuda", enabled=config.precision == "fp16")
    ranks = distributed.join_ranks(device, config.gradient_accumulation_steps)
    param_groups = optim.build_param_groups(model, config.weight_decay, param_schedule)
    optimizer = config.optimizer.build(param_groups, config.learning_rate)
    return TrainSetup(config, model, device, _autocast(device, config.precision), scaler, ranks, optimizer)


@contextmanager
def isolate_torch_state(setup: TrainSetup) -> Iterator[None]:
    """Inside the block, torch is deterministic if `train.full_determinism` is set. After it, that flag and the random number
    generators, which each step seeds, are as they were before."""
    was_enabled, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(CUBLAS_WORKSPACE)
    is_cuda, full_determinism = setup.device.type == "cuda", setup.config.full_determinism
    with torch.random.fork_rng([setup.device] if is_cuda else []):
        try:
            if full_determinism:
                torch.use_deterministic_algorithms(True)
            if full_determinism and is_cuda:
                os.environ.setdefault(CUBLAS_WORKSPACE, ":4096:8")  # cuBLAS refuses to be deterministic without it
            yield
        finally:
            torch.use_deterministic_algorithms(was_enabled, warn_only=warn_only)
            if workspace is None:
                os.environ.pop(CUBLAS_WORKSPACE, None)


def _select_device(name: str) -> torch.device:
    """Resolves `train.device`; with several processes, each takes the GPU of its LOCAL_RANK."""
    device = resolve_device(name, "train.device", int(os.environ.get("LOCAL_RANK", "0")) if world_size() > 1 else 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _autocast(device: torch.device, precision: str) -> Callable[[], AbstractContextManager[Any]]:
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=_DTYPES[precision])
