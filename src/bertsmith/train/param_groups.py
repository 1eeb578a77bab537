"""How fast each weight learns beside the others, and from when on."""

from collections.abc import Callable
from typing import NamedTuple

from torch.optim import Optimizer


class Pace(NamedTuple):
    rate: float = 1.0  # times the rate of the run
    wakes: float = 0.0  # the share of the run that lies behind when it begins to learn


Paces = Callable[[str], Pace]  # by the name of the weight


def alike(name: str) -> Pace:
    """All of them together."""
    return Pace()


def wake(optimizer: Optimizer, done: float) -> None:
    """Weights whose time has not come take no gradient: nothing below the lowest that does is walked back through."""
    for group in optimizer.param_groups:
        awake = done >= group["wakes"]
        for weight in group["params"]:
            weight.requires_grad_(awake)


def set_rates(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["pace"]
