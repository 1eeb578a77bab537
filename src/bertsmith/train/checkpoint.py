"""Checkpoints of a training run: folders `step-N` written atomically, safetensors and JSON only (no pickle).

- save_checkpoint, load_latest_checkpoint, prune_checkpoints: weights, optimizer state, recurrent state, progress
- save_best, load_best, prune_best: the weights of the best evaluation (early stopping)
- load_average: the mean of the last checkpoints
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import artifacts
from ..artifacts import read_json
from ..errors import UserError
from ..tensors import load_tensors, save_tensors
from . import optim as optimizers

PROGRESS_FILE = "progress.json"


class Checkpoint(NamedTuple):
    """A loaded checkpoint."""

    folder: Path
    tensors: dict[str, dict[str, Tensor]]  # by file: model, optimizer, recurrent_state
    metadata: dict[str, Any]


def save_checkpoint(folder: Path, tensors: Mapping[str, dict[str, Tensor]], metadata: dict[str, Any]) -> None:
    """Writes `NAME.safetensors` for each key of `tensors`, and progress.json; the folder appears only once it is complete."""
    with artifacts.atomic_folder(folder) as temp_folder:
        for name, group in tensors.items():
            # copies: safetensors refuses tensors that share memory
            copies = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in group.items()}
            save_tensors(copies, temp_folder / f"{name}.safetensors")
        artifacts.write_json(temp_folder / PROGRESS_FILE, metadata)


def prune_checkpoints(folder: Path, save_total_limit: int, step: int) -> None:
    """Keeps the newest `save_total_limit` checkpoints up to `step`.

    Later ones remain after a rollback and will be overwritten.
    """
    for old in [path for path in list_checkpoints(folder) if checkpoint_step(path) <= step][:-save_total_limit]:
        shutil.rmtree(old)
    for temp_folder in folder.glob("step-*.part"):  # left by a run that was killed while saving
        shutil.rmtree(temp_folder)


def load_latest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint, or None if there is none; damaged ones are skipped with a warning."""
    damage = ""
    for path in reversed(list_checkpoints(folder)):
        try:
            return _load_checkpoint(path)
        except UserError as error:
            damage = damage or str(error)
            warn(f"{error}; trying the checkpoint before it")
    if damage:
        raise UserError(f"every checkpoint in {folder} is damaged: {damage}; remove {folder} to start over")
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders of complete checkpoints, oldest first."""
    paths = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(paths, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    """N of a folder `step-N`."""
    return int(path.name.removeprefix("step-"))


def _load_checkpoint(folder: Path) -> Checkpoint:
    try:
        artifacts.verify_manifest(folder)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / artifacts.MANIFEST} is damaged") from None
    tensors = {path.stem: load_tensors(path) for path in sorted(folder.glob("*.safetensors"))}
    return Checkpoint(folder, tensors, artifacts.read_json(folder / PROGRESS_FILE))


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
    temp_path = path.with_name(path.name + ".part")
    save_tensors(
        {name: value.detach().to("cpu", copy=True).contiguous() for name, value in model.state_dict().items()}, temp_path
    )
    temp_path.replace(path)


def load_best(folder: Path, step: int, model: nn.Module) -> None:
    """Loads the weights that `save_best` wrote at `step` into the model."""
    model.load_state_dict(load_tensors(_best_path(folder, step)))


def prune_best(folder: Path) -> None:
    """Removes best weights that no checkpoint refers to."""
    referenced = {_best_path(folder, read_json(path / PROGRESS_FILE).get("best_step", -1)) for path in list_checkpoints(folder)}
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
