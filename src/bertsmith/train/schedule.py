"""Learning rates as a share of their peak: pure functions of how much of the run is done."""

import math
from collections.abc import Callable
from typing import Literal

from ..errors import UserError

SchedulerType = Literal["linear", "cosine", "constant", "trapezoid", "slanted", "inverse-sqrt"]

SLANTED_MIN_FACTOR = 1 / 32  # of a slanted triangle

_DECAY_FUNCTIONS: dict[str, Callable[[float], float]] = {  # from 1 to 0 over what follows the warm-up
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "constant": lambda t: 1.0,
}


def lr_factor(
    kind: SchedulerType, fraction_done: float, warmup_fraction: float, decay_fraction: float = 0.3, step_fraction: float = 0.0
) -> float:
    """The share of the peak rate when `done` of the run lies behind and `warm` of it is warm-up.

    `step` is the share one step takes: the first step of a warm-up is then not wasted on a rate of 0.
    A trapezoid stays flat until the last `cooldown` of the run; a slanted triangle (Howard and Ruder 2018) rises from
    and falls to a 32nd of the peak; inverse-sqrt (Vaswani et al. 2017) falls by the root of the steps, and never ends.
    """
    if kind == "slanted":
        return SLANTED_MIN_FACTOR + (1 - SLANTED_MIN_FACTOR) * lr_factor(
            "linear", fraction_done, warmup_fraction, step_fraction=step_fraction
        )
    up = min(1.0, (fraction_done + step_fraction) / warmup_fraction) if warmup_fraction > 0 else 1.0
    if kind == "inverse-sqrt":
        return min(up, math.sqrt(warmup_fraction / max(fraction_done + step_fraction, warmup_fraction)))
    if kind == "trapezoid":
        return min(up, _clamp((1 - fraction_done) / decay_fraction) if decay_fraction > 0 else 1.0)
    behind = _clamp((fraction_done - warmup_fraction) / (1 - warmup_fraction)) if warmup_fraction < 1 else 0.0
    return min(up, _DECAY_FUNCTIONS[kind](behind))


def resolve_warmup(warmup: float, steps: int | None) -> float:
    """`warmup` below 1 is a share of the run already; from 1 up it counts steps, which a run by the clock has no number of."""
    if warmup < 0:
        raise UserError(f"train.warmup = {warmup:g} is negative; give a share of the run below 1, or a number of steps")
    if warmup < 1:
        return warmup
    if steps is None:
        raise UserError(f"train.warmup = {warmup:g} counts steps, but train.minutes has none; give a share of the run below 1")
    if warmup > steps:
        raise UserError(f"train.warmup = {warmup:g} steps is longer than the run of {steps}; lower it, or give a share below 1")
    return warmup / steps


def _clamp(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))
