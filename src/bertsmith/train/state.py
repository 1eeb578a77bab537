"""Checkpoints: a folder for each, whole or absent, and nothing pickled."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from .. import artifacts
from .. import tensors as stored
from ..errors import BadInput

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
