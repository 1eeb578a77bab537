"""Learning rate schedules: factors of the peak learning rate as pure functions of the fraction of the run done."""

import math
from collections.abc import Callable
from typing import Literal

from ..errors import UserError

SchedulerType = Literal["linear", "cosine", "constant", "warmup_stable_decay", "slanted_triangular", "inverse_sqrt"]

SLANTED_MIN_FACTOR = 1 / 32  # of the slanted triangular schedule

_DECAY_FUNCTIONS: dict[str, Callable[[float], float]] = {  # t: from 0 to 1 between warmup and end
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "constant": lambda t: 1.0,
}


def lr_factor(
    scheduler_type: SchedulerType,
    fraction_done: float,
    warmup_fraction: float,
    decay_fraction: float = 0.3,
    step_fraction: float = 0.0,
) -> float:
    """Learning rate as a fraction of its peak, in [0, 1], after linear warmup.

    fraction_done: fraction of the run done; warmup_fraction: fraction of the run that is warmup.
    decay_fraction: fraction of the run over which `warmup_stable_decay` falls to 0.
    step_fraction: fraction of the run one step takes, so that the first step of the warmup does not have a learning rate of 0.

    `slanted_triangular` is the schedule of Howard & Ruder (2018): from and to 1/32 of the peak. `inverse_sqrt` (Vaswani
    et al. 2017) decays as 1 / sqrt(step) after the warmup.
    """
    if scheduler_type == "slanted_triangular":
        return SLANTED_MIN_FACTOR + (1 - SLANTED_MIN_FACTOR) * lr_factor(
            "linear", fraction_done, warmup_fraction, step_fraction=step_fraction
        )
    warmup_factor = min(1.0, (fraction_done + step_fraction) / warmup_fraction) if warmup_fraction > 0 else 1.0
    if scheduler_type == "inverse_sqrt":
        return min(warmup_factor, math.sqrt(warmup_fraction / max(fraction_done + step_fraction, warmup_fraction)))
    if scheduler_type == "warmup_stable_decay":
        return min(warmup_factor, _clamp((1 - fraction_done) / decay_fraction) if decay_fraction > 0 else 1.0)
    decay_progress = _clamp((fraction_done - warmup_fraction) / (1 - warmup_fraction)) if warmup_fraction < 1 else 0.0
    return min(warmup_factor, _DECAY_FUNCTIONS[scheduler_type](decay_progress))


def resolve_warmup(warmup: float, steps: int | None) -> float:
    """Warmup as a fraction of the run: `warmup` below 1 is one, from 1 on it is a number of steps (and `steps` is needed)."""
    if warmup < 0:
        raise UserError(
            f"train.warmup_steps = {warmup:g} must be at least 0: a number of steps, or below 1 a fraction of the run"
        )
    if warmup < 1:
        return warmup
    if steps is None:
        raise UserError(
            f"train.warmup_steps = {warmup:g} is a number of steps, but train.minutes is set; give a fraction below 1"
        )
    if warmup > steps:
        raise UserError(
            f"train.warmup_steps = {warmup:g} is more than the {steps} steps of the run; lower it, or give a fraction below 1"
        )
    return warmup / steps


def _clamp(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))
