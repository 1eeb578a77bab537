"""The weights that scored best so far, beside the checkpoints that remember them."""

from pathlib import Path

from torch import nn

from .. import tensors
from ..artifacts import read_json
from .state import PROGRESS, checkpoints


def keep(folder: Path, step: int, model: nn.Module) -> None:
    """Whole or not at all; the ones before stay until no checkpoint speaks of them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, step)
    part = path.with_name(path.name + ".part")
    tensors.save({name: value.detach().to("cpu", copy=True).contiguous() for name, value in model.state_dict().items()}, part)
    part.replace(path)


def recall(folder: Path, step: int, model: nn.Module) -> None:
    """Puts them into the model."""
    model.load_state_dict(tensors.load(_path(folder, step)))


def prune(folder: Path) -> None:
    wanted = {_path(folder, read_json(path / PROGRESS).get("best_step", -1)) for path in checkpoints(folder)}
    for path in folder.glob("best-*"):
        if path not in wanted:
            path.unlink()


def _path(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"
