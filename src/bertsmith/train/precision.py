"""Device, mixed precision (autocast and loss scaling) and compilation of a model."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from ..device import resolve_device
from ..errors import UserError
from . import distributed
from .config import TrainConfig

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class PreparedModel(NamedTuple):
    """A model on its device, with its autocast context and gradient scaler."""

    model: nn.Module
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]]
    scaler: torch.amp.GradScaler  # disabled unless the precision is fp16


def prepare_model(model: nn.Module, config: TrainConfig) -> PreparedModel:
    """Moves the model to its device and compiles it if `train.compile` is set, both in place.

    A model with a method `compile_parts()` compiles itself by that instead.
    """
    device = _select_device(config.device)
    if config.precision == "fp16" and device.type != "cuda":
        raise UserError("train.precision=fp16 needs a CUDA device; on a CPU set train.precision=bf16 or fp32")
    if config.full_determinism and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS for determinism
    torch.use_deterministic_algorithms(config.full_determinism)
    model = model.to(device)
    if config.compile:
        getattr(model, "compile_parts", lambda: model.compile(dynamic=True))()
    scaler = torch.amp.GradScaler("cuda", enabled=config.precision == "fp16")
    return PreparedModel(model, device, _autocast(device, config.precision), scaler)


def _select_device(name: str) -> torch.device:
    """Resolves `train.device`; with several processes, each takes the GPU of its LOCAL_RANK."""
    device = resolve_device(name, "train.device", int(os.environ.get("LOCAL_RANK", "0")) if distributed.world_size() > 1 else 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _autocast(device: torch.device, precision: str) -> Callable[[], AbstractContextManager[Any]]:
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=_DTYPES[precision])
