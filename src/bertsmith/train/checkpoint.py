"""Checkpoints: a folder for each, whole or absent, and nothing pickled."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import artifacts, tensors
from .. import tensors as stored
from ..artifacts import read_json
from ..errors import UserError
from . import optim as optimizers

PROGRESS_FILE = "progress.json"


class Checkpoint(NamedTuple):
    """What a checkpoint holds, and where it lies."""

    folder: Path
    tensors: dict[str, dict[str, Tensor]]  # by file: model, optimizer, carry
    metadata: dict[str, Any]


def save_checkpoint(folder: Path, tensors: Mapping[str, dict[str, Tensor]], metadata: dict[str, Any]) -> None:
    """One safetensors file for each name; readers see the whole folder or none."""
    with artifacts.atomic_folder(folder) as part:
        for name, group in tensors.items():
            # copies, since safetensors refuses two names for one memory
            held = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in group.items()}
            stored.save_tensors(held, part / f"{name}.safetensors")
        artifacts.write_json(part / PROGRESS_FILE, metadata)


def prune_checkpoints(folder: Path, save_total_limit: int, step: int) -> None:
    """Keeps the newest `keep` up to `step`; a later one is of a run that went back, and is left to be overwritten."""
    for old in [path for path in list_checkpoints(folder) if checkpoint_step(path) <= step][:-save_total_limit]:
        shutil.rmtree(old)
    for part in folder.glob("step-*.part"):  # of a run that died while saving
        shutil.rmtree(part)


def load_latest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over. None if there are none at all."""
    damage = ""
    for path in reversed(list_checkpoints(folder)):
        try:
            return _load_checkpoint(path)
        except UserError as error:
            damage = damage or str(error)
            warn(f"{error}; going back to the checkpoint before it")
    if damage:
        raise UserError(f"no checkpoint in {folder} is whole: {damage}; remove {folder} to begin anew")
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first; one that was being written when the run died is none."""
    found = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _load_checkpoint(folder: Path) -> Checkpoint:
    try:
        artifacts.verify_manifest(folder)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / artifacts.MANIFEST} is damaged") from None
    tensors = {path.stem: stored.load_tensors(path) for path in sorted(folder.glob("*.safetensors"))}
    return Checkpoint(folder, tensors, artifacts.read_json(folder / PROGRESS_FILE))


RecurrentState = tuple[Tensor, ...]


def collect_tensors(
    model: nn.Module, optimizer: Optimizer, recurrent_states: Sequence[Sequence[Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """By file; `carries` has one of each rank, kept as `rank.number`."""
    held = {f"{rank}.{i}": tensor for rank, carry in enumerate(recurrent_states) for i, tensor in enumerate(carry)}
    return {"model": model.state_dict(), "optimizer": optimizers.optimizer_state_by_name(optimizer, model), "carry": held}


def restore_tensors(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Weights and the optimizer's state, in place; strict about names and shapes."""
    try:
        model.load_state_dict(checkpoint.tensors["model"])
    except RuntimeError as error:
        raise UserError(f"{checkpoint.folder / 'model.safetensors'} does not fit this model: {error}") from None
    optimizers.load_optimizer_state(optimizer, model, checkpoint.tensors["optimizer"])


def restore_recurrent_state(checkpoint: Checkpoint, rank: int, world_size: int, device: torch.device) -> RecurrentState:
    """The carry of this rank."""
    held = checkpoint.tensors["carry"]
    if held and {int(key.split(".")[0]) for key in held} != set(range(world_size)):
        raise UserError(f"{checkpoint.folder} was saved by another number of processes; go on with as many as before")
    mine = sorted(int(key.split(".")[1]) for key in held if key.startswith(f"{rank}."))
    return tuple(held[f"{rank}.{i}"].to(device) for i in mine)


def save_best(folder: Path, step: int, model: nn.Module) -> None:
    """Whole or not at all; the ones before stay until no checkpoint speaks of them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _best_path(folder, step)
    part = path.with_name(path.name + ".part")
    tensors.save_tensors(
        {name: value.detach().to("cpu", copy=True).contiguous() for name, value in model.state_dict().items()}, part
    )
    part.replace(path)


def load_best(folder: Path, step: int, model: nn.Module) -> None:
    """Puts them into the model."""
    model.load_state_dict(tensors.load_tensors(_best_path(folder, step)))


def prune_best(folder: Path) -> None:
    wanted = {_best_path(folder, read_json(path / PROGRESS_FILE).get("best_step", -1)) for path in list_checkpoints(folder)}
    for path in folder.glob("best-*"):
        if path not in wanted:
            path.unlink()


def _best_path(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"


def load_average(folder: Path, count: int, step: int, model: nn.Module) -> list[int]:
    """Puts the mean of the newest `count` checkpoints up to `step` into the model, and says which they were.

    There may be fewer; the weights before the first step are not among them.
    """
    chosen = [path for path in list_checkpoints(folder) if 0 < checkpoint_step(path) <= step][-count:]
    if len(chosen) > 1:
        model.load_state_dict(average_weights(chosen))
    return [checkpoint_step(path) for path in chosen]


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """Summed in float64; what is no float is as in the last."""
    last = tensors.load_tensors(paths[-1] / "model.safetensors")
    sums = {name: value.double() for name, value in last.items() if value.is_floating_point()}
    for path in paths[:-1]:
        for name, value in tensors.load_tensors(path / "model.safetensors").items():
            if name in sums:
                sums[name] += value.double()
    return last | {name: (value / len(paths)).to(last[name].dtype) for name, value in sums.items()}
