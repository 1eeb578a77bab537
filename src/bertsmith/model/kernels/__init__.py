"""Triton kernels that fuse memory-bound operations on NVIDIA GPUs; elsewhere plain torch computes the same."""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def supports(x: Tensor) -> bool:
    """Whether the kernels can be used: half precision on CUDA, outside torch.compile, which fuses by itself."""
    fits = x.dtype in (torch.bfloat16, torch.float16) and (x.is_cuda or _is_interpreter_enabled())
    return fits and _is_triton_installed() and not torch.compiler.is_compiling()


@cache
def _is_triton_installed() -> bool:
    """The kernels use launch options of the NVIDIA backend: not on ROCm."""
    return find_spec("triton") is not None and torch.version.hip is None


def _is_interpreter_enabled() -> bool:
    """Triton's interpreter runs kernels on a CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"
