"""Muon: matrices move by the nearest orthogonal matrix to their momentum, everything else by AdamW."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TURNS = ((3.4445, -4.7750, 2.0315),) * 5  # of Newton and Schulz: singular values end between 0.7 and 1.2


class MuonAdamw(torch.optim.AdamW):
    """Jordan et al. 2024. Groups marked `matrices` move by `times` the rate; the others as torch's fused AdamW moves them.

    Matrices of one shape are made orthogonal together. One that holds several side by side says so by an attribute `parts`:
    each is made orthogonal by itself. Gradients of matrices are let go of by `step`.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, momentum: float,
                 times: float) -> None:  # fmt: skip
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)
        self.momentum, self.times = momentum, times

    found_inf: Tensor | None = None  # 1 where an update is to be left out, as torch's own optimizers are told

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # Adam's asks every weight for a `step`, which matrices have not

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            held = [weight for weight in group["params"] if weight.grad is not None] if group["matrices"] else []
            if held:
                self._move(held, group["lr"] * self.times, group["weight_decay"])
        return super().step(closure)

    def _move(self, weights: list[Tensor], rate: float, decay: float) -> None:
        grads = [weight.grad for weight in weights if weight.grad is not None]
        means = [self.state[weight].setdefault("momentum", torch.zeros_like(weight)) for weight in weights]
        go: Tensor | float = 1.0
        if self.found_inf is not None:  # on the device: gradients may be no numbers at all
            go = 1 - self.found_inf
            grads = [torch.where(go > 0, grad, 0.0) for grad in grads]
        steps = torch._foreach_sub(grads, means)
        torch._foreach_mul_(steps, go * (1 - self.momentum))
        torch._foreach_add_(means, steps)
        updates = _orthogonal(weights, list(torch._foreach_lerp(grads, means, self.momentum)))
        if decay:
            torch._foreach_mul_(weights, 1 - go * (rate * decay))
        torch._foreach_mul_(updates, go * -rate)
        torch._foreach_add_(weights, updates)
        for weight in weights:
            weight.grad = None


def _orthogonal(weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Each update made orthogonal, with the rest of its shape; tall ones longer by the root of how tall they are."""
    shapes: dict[tuple[int, int, int], list[int]] = {}
    for number, weight in enumerate(weights):
        parts = getattr(weight, "parts", 1)
        shapes.setdefault((parts, len(weight) // parts, weight.shape[1]), []).append(number)
    for (parts, rows, columns), numbers in shapes.items():
        together = torch.stack([updates[number] for number in numbers]).reshape(-1, rows, columns)
        done = newton_schulz(together) * max(1.0, rows / columns) ** 0.5
        for number, one in zip(numbers, done.reshape(-1, parts * rows, columns), strict=True):
            updates[number] = one.to(weights[number].dtype)
    return updates


def newton_schulz(x: Tensor) -> Tensor:
    """(matrices, rows, columns) with singular values brought near 1, by a fixed number of products; on a GPU in bfloat16,
    which is as good here, and far slower on a CPU."""
    tall = x.shape[1] > x.shape[2]
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for a, b, c in TURNS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
