"""Adam's relatives that torch does not have: Google BERT's Adam and LAMB."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class _Moments(Optimizer):
    """Keeps the mean of the gradient and of its square for each weight, and hands a group's lists to `_move`."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._move(group, weights, *self._averaged(group, weights))
        return loss

    def _averaged(self, group: dict[str, Any], weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        first, second = group["betas"]
        grads = [weight.grad for weight in weights if weight.grad is not None]  # all of them: the caller chose so
        slots = [self._slots(weight) for weight in weights]
        means, squares = [slot["exp_avg"] for slot in slots], [slot["exp_avg_sq"] for slot in slots]
        torch._foreach_lerp_(means, grads, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, grads, grads, 1 - second)
        return means, squares

    def _slots(self, weight: Tensor) -> dict[str, Tensor]:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())  # on the host: reading it waits for nothing
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        return state

    def _move(self, group: dict[str, Any], weights: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> None:
        raise NotImplementedError


class UncorrectedAdam(_Moments):
    """Adam with decoupled decay and without bias correction, as in google-research/bert `optimization.py`.

    Its first steps are longer than AdamW's by (1 - b1) / sqrt(1 - b2), about three, so a warm-up matters more.
    """

    def _move(self, group: dict[str, Any], weights: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> None:
        below = torch._foreach_sqrt(squares)
        torch._foreach_add_(below, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(weights, means, below, -group["lr"])


class LayerwiseAdam(_Moments):
    """LAMB (You et al. 2020, algorithm 2): Adam whose step in each matrix is as long as lr times the matrix itself.

    Groups marked `vectors` (biases, norms) move by plain Adam: the authors' code excludes them from trust as from decay.
    """

    def _move(self, group: dict[str, Any], weights: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> None:
        updates = self._corrected(group, weights, means, squares)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if not group.get("vectors"):
            torch._foreach_mul_(updates, _trust(weights, updates))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _corrected(
        self, group: dict[str, Any], weights: list[Tensor], means: list[Tensor], squares: list[Tensor]
    ) -> list[Tensor]:
        first, second = group["betas"]
        steps = [int(self.state[weight]["step"]) for weight in weights]
        below = list(torch._foreach_div(squares, [1 - second**step for step in steps]))
        torch._foreach_sqrt_(below)
        torch._foreach_add_(below, group["eps"])
        updates = list(torch._foreach_div(means, [1 - first**step for step in steps]))
        torch._foreach_div_(updates, below)
        return updates


def _trust(weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """||w|| / ||update|| for each matrix; 1 where either is zero, so that a zero matrix can begin to move."""
    pairs = zip(torch._foreach_norm(weights), torch._foreach_norm(updates), strict=True)
    return [torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w)) for w, u in pairs]
