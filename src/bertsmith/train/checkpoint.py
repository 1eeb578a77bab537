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
from ..errors import BadInput
from . import optim as optimizers

PROGRESS = "progress.json"


class Saved(NamedTuple):
    """What a checkpoint holds, and where it lies."""

    folder: Path
    tensors: dict[str, dict[str, Tensor]]  # by file: model, optimizer, carry
    facts: dict[str, Any]


def save(folder: Path, tensors: Mapping[str, dict[str, Tensor]], facts: dict[str, Any]) -> None:
    """One safetensors file for each name; readers see the whole folder or none."""
    with artifacts.new_folder(folder) as part:
        for name, group in tensors.items():
            # copies, since safetensors refuses two names for one memory
            held = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in group.items()}
            stored.save(held, part / f"{name}.safetensors")
        artifacts.write_json(part / PROGRESS, facts)


def prune(folder: Path, keep: int, step: int) -> None:
    """Keeps the newest `keep` up to `step`; a later one is of a run that went back, and is left to be overwritten."""
    for old in [path for path in checkpoints(folder) if number(path) <= step][:-keep]:
        shutil.rmtree(old)
    for part in folder.glob("step-*.part"):  # of a run that died while saving
        shutil.rmtree(part)


def newest(folder: Path, warn: Callable[[str], None]) -> Saved | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over. None if there are none at all."""
    damage = ""
    for path in reversed(checkpoints(folder)):
        try:
            return _load(path)
        except BadInput as error:
            damage = damage or str(error)
            warn(f"{error}; going back to the checkpoint before it")
    if damage:
        raise BadInput(f"no checkpoint in {folder} is whole: {damage}; remove {folder} to begin anew")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first; one that was being written when the run died is none."""
    found = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=number)


def number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _load(folder: Path) -> Saved:
    try:
        artifacts.verify(folder)
    except (KeyError, TypeError, AttributeError):
        raise BadInput(f"{folder / artifacts.MANIFEST} is damaged") from None
    tensors = {path.stem: stored.load(path) for path in sorted(folder.glob("*.safetensors"))}
    return Saved(folder, tensors, artifacts.read_json(folder / PROGRESS))


Carry = tuple[Tensor, ...]


def collect_tensors(
    model: nn.Module, optimizer: Optimizer, carries: Sequence[Sequence[Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """By file; `carries` has one of each rank, kept as `rank.number`."""
    held = {f"{rank}.{i}": tensor for rank, carry in enumerate(carries) for i, tensor in enumerate(carry)}
    return {"model": model.state_dict(), "optimizer": optimizers.by_name(optimizer, model), "carry": held}


def restore_tensors(saved: Saved, model: nn.Module, optimizer: Optimizer) -> None:
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


def save_best(folder: Path, step: int, model: nn.Module) -> None:
    """Whole or not at all; the ones before stay until no checkpoint speaks of them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, step)
    part = path.with_name(path.name + ".part")
    tensors.save({name: value.detach().to("cpu", copy=True).contiguous() for name, value in model.state_dict().items()}, part)
    part.replace(path)


def load_best(folder: Path, step: int, model: nn.Module) -> None:
    """Puts them into the model."""
    model.load_state_dict(tensors.load(_path(folder, step)))


def prune_best(folder: Path) -> None:
    wanted = {_path(folder, read_json(path / PROGRESS).get("best_step", -1)) for path in checkpoints(folder)}
    for path in folder.glob("best-*"):
        if path not in wanted:
            path.unlink()


def _path(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"


def load_average(folder: Path, count: int, step: int, model: nn.Module) -> list[int]:
    """Puts the mean of the newest `count` checkpoints up to `step` into the model, and says which they were.

    There may be fewer; the weights before the first step are not among them.
    """
    chosen = [path for path in checkpoints(folder) if 0 < number(path) <= step][-count:]
    if len(chosen) > 1:
        model.load_state_dict(mean(chosen))
    return [number(path) for path in chosen]


def mean(chosen: list[Path]) -> dict[str, Tensor]:
    """Summed in float64; what is no float is as in the last."""
    last = tensors.load(chosen[-1] / "model.safetensors")
    sums = {name: value.double() for name, value in last.items() if value.is_floating_point()}
    for path in chosen[:-1]:
        for name, value in tensors.load(path / "model.safetensors").items():
            if name in sums:
                sums[name] += value.double()
    return last | {name: (value / len(chosen)).to(last[name].dtype) for name, value in sums.items()}
