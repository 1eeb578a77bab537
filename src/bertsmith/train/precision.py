"""Where the model runs and in which numbers."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from ..device import place
from ..errors import BadInput
from . import distributed
from .config import Train

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Prepared(NamedTuple):
    """A model on its device, and what its steps are wrapped in."""

    model: nn.Module
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]]
    scaler: torch.amp.GradScaler  # does nothing unless the precision is fp16


def prepare(model: nn.Module, config: Train) -> Prepared:
    """Moves the model, in place, and compiles it in place where the recipe asks for it.

    A model that knows better which of its parts to compile says so by a method `compile_parts()`.
    """
    device = _chosen(config.device)
    if config.precision == "fp16" and device.type != "cuda":
        raise BadInput("train.precision = fp16 needs a CUDA device; on the CPU take bf16 or fp32")
    if config.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses to be deterministic without it
    torch.use_deterministic_algorithms(config.deterministic)
    model = model.to(device)
    if config.compile:
        getattr(model, "compile_parts", lambda: model.compile(dynamic=True))()
    scaler = torch.amp.GradScaler("cuda", enabled=config.precision == "fp16")
    return Prepared(model, device, _autocast(device, config.precision), scaler)


def _chosen(name: str) -> torch.device:
    """Of several processes, each takes the GPU of its own number."""
    device = place(name, "train.device", int(os.environ.get("LOCAL_RANK", "0")) if distributed.world() > 1 else 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _autocast(device: torch.device, precision: str) -> Callable[[], AbstractContextManager[Any]]:
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=_TYPES[precision])
