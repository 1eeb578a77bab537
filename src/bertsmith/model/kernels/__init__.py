"""Triton kernels for what a GPU would else do in many passes over memory; everywhere else plain torch does the same."""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def supports(x: Tensor) -> bool:
    """Half precision on a CUDA device, outside a compiled graph, which fuses by itself."""
    fits = x.dtype in (torch.bfloat16, torch.float16) and (x.is_cuda or _is_interpreter_enabled())
    return fits and _is_triton_installed() and not torch.compiler.is_compiling()


@cache
def _is_triton_installed() -> bool:
    """They are tuned for NVIDIA's compiler, and know options that no other has."""
    return find_spec("triton") is not None and torch.version.hip is None


def _is_interpreter_enabled() -> bool:
    """Triton's own way to run kernels on a CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"
