"""The torch device named by a setting, for training and inference."""

import re
from typing import Any

import torch
from torch import Tensor

from .errors import UserError


def resolve_device(name: str, key: str = "device", index: int = 0) -> torch.device:
    """`auto` is a GPU if there is one, else the CPU; `cuda` or `auto` without a number is GPU `index` (the local rank).

    `key` is the name of the setting, for error messages.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::([0-9]+))?", name) if isinstance(name, str) else None
    if match is None:
        word = str(name).lower()
        is_index = re.fullmatch("[0-9]+", word) is not None  # as in transformers' pipeline(device=0)
        meant = (
            f"cuda:{word}" if is_index else {"-1": "cpu", "gpu": "cuda"}.get(word, word if word in ("cpu", "cuda") else None)
        )
        hint = f"; did you mean {key}={meant}?" if meant else ""
        raise UserError(f"{key}={name!r} is not a device; set auto, cpu, cuda or cuda:N{hint}")
    count = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    index = int(match[1] or index)
    if index >= count:
        problem = f"cuda:{index} does not exist, this machine has {count or 'no'} CUDA device{'s' if count > 1 else ''}"
        hint = f"set {key}=cpu or auto" if match[1] or not count else f"start at most {count} processes"
        raise UserError(f"{key}={name}: {problem}; {hint}")
    return torch.device("cuda", index)


def copy_to_device(tensor: Tensor, device: Any) -> Tensor:
    """The tensor on the device. From the host to a GPU it goes through pinned memory: from other memory, a copy waits until
    the GPU has done the work before it."""
    if torch.device(device).type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
