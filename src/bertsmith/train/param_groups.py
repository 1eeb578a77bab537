"""Learning rate scale and gradual unfreezing by parameter (ULMFiT, Howard & Ruder 2018)."""

from collections.abc import Callable
from typing import NamedTuple

from torch.optim import Optimizer


class ParamSchedule(NamedTuple):
    """How a parameter is trained."""

    lr_scale: float = 1.0  # multiplies the learning rate
    unfreeze_at: float = 0.0  # fraction of the run after which it is trained


ParamScheduleFn = Callable[[str], ParamSchedule]  # by parameter name


def uniform_schedule(name: str) -> ParamSchedule:
    """Every parameter at the full learning rate from the first step."""
    return ParamSchedule()


def unfreeze(optimizer: Optimizer, fraction_done: float) -> None:
    """Sets requires_grad of each group by its `unfreeze_at`: the backward pass stops at the lowest unfrozen layer."""
    for group in optimizer.param_groups:
        requires_grad = fraction_done >= group["unfreeze_at"]
        for param in group["params"]:
            param.requires_grad_(requires_grad)


def set_learning_rates(optimizer: Optimizer, lr: float) -> None:
    """Sets lr times `lr_scale` in each group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
