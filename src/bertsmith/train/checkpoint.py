"""What the checkpoints of a `runs.Run` hold when a Trainer writes them: safetensors and JSON only (no pickle).

- collect_tensors, restore_tensors, restore_recurrent_state: weights, optimizer state, recurrent state
- save_best, load_best, prune_best: the weights of the best evaluation (early stopping)
- load_average: the mean of the last checkpoints
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..artifacts import read_object
from ..errors import UserError
from ..runs import PROGRESS_FILE, Checkpoint, checkpoint_step, list_checkpoints
from ..tensors import load_tensors, save_tensors
from . import optim as optimizers

RecurrentState = tuple[Tensor, ...]


def collect_tensors(
    model: nn.Module, optimizer: Optimizer, recurrent_states: Sequence[Sequence[Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """Tensors by file name; `recurrent_states` has one entry per rank, stored under `rank.index`."""
    flat_states = {
        f"{rank}.{i}": tensor
        for rank, recurrent_state in enumerate(recurrent_states)
        for i, tensor in enumerate(recurrent_state)
    }
    return {
        "model": model.state_dict(),
        "optimizer": optimizers.optimizer_state_by_name(optimizer, model),
        "recurrent_state": flat_states,
    }


def restore_tensors(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Loads weights and optimizer state in place; strict about names and shapes."""
    try:
        model.load_state_dict(checkpoint.tensors["model"])
    except RuntimeError as error:
        raise UserError(f"{checkpoint.folder / 'model.safetensors'} does not match this model: {error}") from None
    optimizers.load_optimizer_state(optimizer, model, checkpoint.tensors["optimizer"])


def restore_recurrent_state(checkpoint: Checkpoint, rank: int, world_size: int, device: torch.device) -> RecurrentState:
    """The recurrent state of this rank, on `device`."""
    saved = checkpoint.tensors["recurrent_state"]
    if saved and {int(key.split(".")[0]) for key in saved} != set(range(world_size)):
        num_saved = len({key.split(".")[0] for key in saved})
        raise UserError(f"{checkpoint.folder} was saved by {num_saved} processes, not {world_size}; resume with {num_saved}")
    indices = sorted(int(key.split(".")[1]) for key in saved if key.startswith(f"{rank}."))
    return tuple(saved[f"{rank}.{i}"].to(device) for i in indices)


def save_best(folder: Path, step: int, model: nn.Module) -> None:
    """Writes the weights atomically; earlier best weights stay until no checkpoint refers to them (`prune_best`)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _best_path(folder, step)
    save_tensors({name: value.detach().to("cpu", copy=True).contiguous() for name, value in model.state_dict().items()}, path)


def load_best(folder: Path, step: int, model: nn.Module) -> None:
    """Loads the weights that `save_best` wrote at `step` into the model."""
    model.load_state_dict(load_tensors(_best_path(folder, step)))


def prune_best(folder: Path) -> None:
    """Removes best weights that no checkpoint refers to."""
    progress = [read_object(path / PROGRESS_FILE) for path in list_checkpoints(folder)]
    referenced = {_best_path(folder, values["evaluation"]["best_step"]) for values in progress}
    for path in folder.glob("best-*"):
        if path not in referenced:
            path.unlink()


def _best_path(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"


def load_average(folder: Path, count: int, step: int, model: nn.Module) -> list[int]:
    """Loads the mean of the newest `count` checkpoints up to `step` into the model; returns their steps.

    There may be fewer than `count`. The initial weights (step 0) are never included.
    """
    paths = [path for path in list_checkpoints(folder) if 0 < checkpoint_step(path) <= step][-count:]
    if len(paths) > 1:
        model.load_state_dict(average_weights(paths))
    return [checkpoint_step(path) for path in paths]


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """Mean of the float tensors, summed in float64; other tensors are taken from the last checkpoint."""
    last = load_tensors(paths[-1] / "model.safetensors")
    sums = {name: value.double() for name, value in last.items() if value.is_floating_point()}
    for path in paths[:-1]:
        for name, value in load_tensors(path / "model.safetensors").items():
            if name in sums:
                sums[name] += value.double()
    return last | {name: (value / len(paths)).to(last[name].dtype) for name, value in sums.items()}
