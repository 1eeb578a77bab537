"""The sparsity over a run: zero, then rising along a cubic (Zhu and Gupta 2017), then constant while the weights recover."""

from typing import Annotated

from ...config import Config, Probability
from ...errors import UserError


class CubicSchedule(Config, frozen=True):
    """s(t) = amount * (1 - (1 - u)^3), u = (t - begin) / (end - begin) within [0, 1]; t: fraction of the run done."""

    begin: Annotated[Probability, "fraction of the run after which pruning begins; scores are collected before"] = 0.1
    end: Annotated[Probability, "fraction of the run after which the mask stays; the rest recovers the score"] = 0.5

    def check(self) -> None:
        if self.begin >= self.end:
            raise UserError(f"sparsity_schedule.begin={self.begin:g} must be below sparsity_schedule.end={self.end:g}")
        if self.end >= 1:
            raise UserError(f"sparsity_schedule.end={self.end:g} must be below 1: the last steps train with the final mask")

    def sparsity(self, amount: float, fraction_done: float) -> float:
        """The share that is removed at this point of the run."""
        progress = min(max((fraction_done - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return amount * (1 - (1 - progress) ** 3)
