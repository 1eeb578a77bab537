"""The mean of the last checkpoints: weights that wander around a good place, put in the middle of it."""

from pathlib import Path

from torch import Tensor, nn

from .. import tensors
from .state import checkpoints, number


def recall(folder: Path, count: int, step: int, model: nn.Module) -> list[int]:
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
