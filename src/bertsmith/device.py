"""The device that a person names, for training and for answers alike."""

import re

import torch

from .errors import UserError


def resolve_device(name: str, key: str = "device", index: int = 0) -> torch.device:
    """`auto` is a GPU where there is one, else the CPU; a GPU without a number in its name is the one of `number`.

    `key` is what the person calls the setting: an error says so.
    """
    said = re.fullmatch(r"auto|cpu|cuda(?::([0-9]+))?", name) if isinstance(name, str) else None
    if said is None:
        raise UserError(f"{key}={name!r} is not known; write auto, cpu, cuda or cuda:0")
    count = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    index = int(said[1] or index)
    if index >= count:
        here = f"no such device as cuda:{index}, with {count or 'no'} CUDA device{'s' if count > 1 else ''} here"
        way_out = "write device=cpu, or auto" if said[1] or not count else f"start no more than {count} processes"
        raise UserError(f"{key}={name}: {here}; {way_out}")
    return torch.device("cuda", index)
