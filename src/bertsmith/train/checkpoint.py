"""What of a run are tensors: taken apart for a checkpoint, and put back."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import BadInput
from . import optimizer as optimizers
from .state import Saved

Carry = tuple[Tensor, ...]


def packed(model: nn.Module, optimizer: Optimizer, carries: Sequence[Sequence[Tensor]]) -> dict[str, dict[str, Tensor]]:
    """By file; `carries` has one of each rank, kept as `rank.number`."""
    held = {f"{rank}.{i}": tensor for rank, carry in enumerate(carries) for i, tensor in enumerate(carry)}
    return {"model": model.state_dict(), "optimizer": optimizers.by_name(optimizer, model), "carry": held}


def unpack(saved: Saved, model: nn.Module, optimizer: Optimizer) -> None:
    """Weights and the optimizer's state, in place; strict about names and shapes."""
    try:
        model.load_state_dict(saved.tensors["model"])
    except RuntimeError as error:
        raise BadInput(f"{saved.folder / 'model.safetensors'} does not fit this model: {error}") from None
    optimizers.restore(optimizer, model, saved.tensors["optimizer"])


def carried(saved: Saved, rank: int, count: int, device: torch.device) -> Carry:
    """The carry of this rank."""
    held = saved.tensors["carry"]
    if held and {int(key.split(".")[0]) for key in held} != set(range(count)):
        raise BadInput(f"{saved.folder} was saved by another number of processes; go on with as many as before")
    mine = sorted(int(key.split(".")[1]) for key in held if key.startswith(f"{rank}."))
    return tuple(held[f"{rank}.{i}"].to(device) for i in mine)
