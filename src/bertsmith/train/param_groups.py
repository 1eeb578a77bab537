"""How fast each weight learns beside the others, and from when on."""

from collections.abc import Callable
from typing import NamedTuple

from torch.optim import Optimizer


class ParamSchedule(NamedTuple):
    lr_scale: float = 1.0  # times the rate of the run
    unfreeze_at: float = 0.0  # the share of the run that lies behind when it begins to learn


ParamScheduleFn = Callable[[str], ParamSchedule]  # by the name of the weight


def uniform_schedule(name: str) -> ParamSchedule:
    """All of them together."""
    return ParamSchedule()


def unfreeze(optimizer: Optimizer, fraction_done: float) -> None:
    """Weights whose time has not come take no gradient: nothing below the lowest that does is walked back through."""
    for group in optimizer.param_groups:
        awake = fraction_done >= group["wakes"]
        for weight in group["params"]:
            weight.requires_grad_(awake)


def set_learning_rates(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["pace"]
