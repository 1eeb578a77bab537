"""Adam's relatives that torch does not have: Google BERT's Adam and LAMB."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import PosFloat, Probability, Variant
from ..errors import UserError
from .param_groups import ParamSchedule, ParamScheduleFn, uniform_schedule


class _AdamBase(Optimizer):
    """Keeps the mean of the gradient and of its square for each weight, and hands a group's lists to `_move`."""

    def __init__(self, param_groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(param_groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._apply_update(group, weights, *self._update_moments(group, weights))
        return loss

    def _update_moments(self, group: dict[str, Any], params: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        first, second = group["betas"]
        grads = [weight.grad for weight in params if weight.grad is not None]  # all of them: the caller chose so
        slots = [self._advance_state(weight) for weight in params]
        means, squares = [slot["exp_avg"] for slot in slots], [slot["exp_avg_sq"] for slot in slots]
        torch._foreach_lerp_(means, grads, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, grads, grads, 1 - second)
        return means, squares

    def _advance_state(self, param: Tensor) -> dict[str, Tensor]:
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros(())  # on the host: reading it waits for nothing
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
        state["step"] += 1
        return state

    def _apply_update(
        self, group: dict[str, Any], params: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor]
    ) -> None:
        raise NotImplementedError


class BertAdamOptimizer(_AdamBase):
    """Adam with decoupled decay and without bias correction, as in google-research/bert `optimization.py`.

    Its first steps are longer than AdamW's by (1 - b1) / sqrt(1 - b2), about three, so a warm-up matters more.
    """

    def _apply_update(
        self, group: dict[str, Any], params: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor]
    ) -> None:
        below = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_add_(below, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(params, exp_avgs, below, -group["lr"])


class LambOptimizer(_AdamBase):
    """LAMB (You et al. 2020, algorithm 2): Adam whose step in each matrix is as long as lr times the matrix itself.

    Groups marked `vectors` (biases, norms) move by plain Adam: the authors' code excludes them from trust as from decay.
    """

    def _apply_update(
        self, group: dict[str, Any], params: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor]
    ) -> None:
        updates = self._bias_corrected_updates(group, params, exp_avgs, exp_avg_sqs)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        if not group.get("vectors"):
            torch._foreach_mul_(updates, _trust_ratios(params, updates))
        torch._foreach_add_(params, updates, alpha=-group["lr"])

    def _bias_corrected_updates(
        self, group: dict[str, Any], params: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor]
    ) -> list[Tensor]:
        first, second = group["betas"]
        steps = [int(self.state[weight]["step"]) for weight in params]
        below = list(torch._foreach_div(exp_avg_sqs, [1 - second**step for step in steps]))
        torch._foreach_sqrt_(below)
        torch._foreach_add_(below, group["eps"])
        updates = list(torch._foreach_div(exp_avgs, [1 - first**step for step in steps]))
        torch._foreach_div_(updates, below)
        return updates


def _trust_ratios(params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """||w|| / ||update|| for each matrix; 1 where either is zero, so that a zero matrix can begin to move."""
    pairs = zip(torch._foreach_norm(params), torch._foreach_norm(updates), strict=True)
    return [torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w)) for w, u in pairs]


NEWTON_SCHULZ_COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 5  # of Newton and Schulz: singular values end between 0.7 and 1.2


class MuonAdamW(torch.optim.AdamW):
    """Jordan et al. 2024. Groups marked `matrices` move by `times` the rate; the others as torch's fused AdamW moves them.

    Matrices of one shape are made orthogonal together. One that holds several side by side says so by an attribute `parts`:
    each is made orthogonal by itself. Gradients of matrices are let go of by `step`.
    """

    def __init__(self, param_groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, momentum: float,
                 lr_multiplier: float) -> None:  # fmt: skip
        super().__init__(param_groups, lr=lr, betas=betas, eps=eps, fused=True)
        self.momentum, self.lr_multiplier = momentum, lr_multiplier

    found_inf: Tensor | None = None  # 1 where an update is to be left out, as torch's own optimizers are told

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # Adam's asks every weight for a `step`, which matrices have not

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            held = [weight for weight in group["params"] if weight.grad is not None] if group["matrices"] else []
            if held:
                self._apply_muon_update(held, group["lr"] * self.lr_multiplier, group["weight_decay"])
        return super().step(closure)

    def _apply_muon_update(self, params: list[Tensor], lr: float, weight_decay: float) -> None:
        grads = [weight.grad for weight in params if weight.grad is not None]
        means = [self.state[weight].setdefault("momentum", torch.zeros_like(weight)) for weight in params]
        go: Tensor | float = 1.0
        if self.found_inf is not None:  # on the device: gradients may be no numbers at all
            go = 1 - self.found_inf
            grads = [torch.where(go > 0, grad, 0.0) for grad in grads]
        steps = torch._foreach_sub(grads, means)
        torch._foreach_mul_(steps, go * (1 - self.momentum))
        torch._foreach_add_(means, steps)
        updates = _orthogonalize(params, list(torch._foreach_lerp(grads, means, self.momentum)))
        if weight_decay:
            torch._foreach_mul_(params, 1 - go * (lr * weight_decay))
        torch._foreach_mul_(updates, go * -lr)
        torch._foreach_add_(params, updates)
        for weight in params:
            weight.grad = None


def _orthogonalize(params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Each update made orthogonal, with the rest of its shape; tall ones longer by the root of how tall they are."""
    shapes: dict[tuple[int, int, int], list[int]] = {}
    for number, weight in enumerate(params):
        parts = getattr(weight, "parts", 1)
        shapes.setdefault((parts, len(weight) // parts, weight.shape[1]), []).append(number)
    for (parts, rows, columns), numbers in shapes.items():
        together = torch.stack([updates[number] for number in numbers]).reshape(-1, rows, columns)
        done = newton_schulz(together) * max(1.0, rows / columns) ** 0.5
        for number, one in zip(numbers, done.reshape(-1, parts * rows, columns), strict=True):
            updates[number] = one.to(params[number].dtype)
    return updates


def newton_schulz(x: Tensor) -> Tensor:
    """(matrices, rows, columns) with singular values brought near 1, by a fixed number of products; on a GPU in bfloat16,
    which is as good here, and far slower on a CPU."""
    tall = x.shape[1] > x.shape[2]
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for a, b, c in NEWTON_SCHULZ_COEFFICIENTS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


ParamGroups = list[dict[str, Any]]


class Adamw(Variant, frozen=True):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), torch's own."""

    betas: Annotated[tuple[Probability, Probability], "memory of the mean of the gradient, and of its square"] = (0.9, 0.999)
    eps: Annotated[PosFloat, "added to the root of the mean square"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return torch.optim.AdamW(param_groups, lr=lr, betas=self.betas, eps=self.eps, fused=True)


class BertAdam(Variant, frozen=True):
    """The Adam that BERT was trained with: no bias correction."""

    betas: Annotated[tuple[Probability, Probability], "memory of the mean of the gradient, and of its square"] = (0.9, 0.999)
    eps: Annotated[PosFloat, "added to the root of the mean square"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return BertAdamOptimizer(param_groups, lr, self.betas, self.eps)


class Lamb(Variant, frozen=True):
    """LAMB, for very large batches."""

    betas: Annotated[tuple[Probability, Probability], "memory of the mean of the gradient, and of its square"] = (0.9, 0.999)
    eps: Annotated[PosFloat, "added to the root of the mean square"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return LambOptimizer(param_groups, lr, self.betas, self.eps)


class Muon(Variant, frozen=True):
    """Muon for the matrices between layers, AdamW for tables, heads and vectors."""

    momentum: Annotated[Probability, "memory of the gradient of a matrix"] = 0.95
    times: Annotated[PosFloat, "the rate of matrices, as a multiple of train.rate"] = 10.0
    betas: Annotated[tuple[Probability, Probability], "AdamW's memory of the mean of the gradient, and of its square"] = (
        0.9,
        0.98,
    )
    eps: Annotated[PosFloat, "AdamW's, added to the root of the mean square"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return MuonAdamW(param_groups, lr, self.betas, self.eps, self.momentum, self.times)


OptimizerConfig = Adamw | BertAdam | Lamb | Muon


def build_param_groups(
    model: nn.Module, weight_decay: float, param_schedule: ParamScheduleFn = uniform_schedule
) -> ParamGroups:
    """Matrices decay; biases, norms and lone vectors do not. Frozen weights are in no group; each pace has its own."""
    found: dict[tuple[ParamSchedule, bool, bool], list[nn.Parameter]] = {}
    between = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            matrices = weight in between and not name.startswith("heads.")
            found.setdefault((param_schedule(name), weight.ndim <= 1, matrices), []).append(weight)
    if not found:
        raise UserError("every weight of the model is frozen: there is nothing to train; freeze less")
    return [
        {
            "params": held,
            "weight_decay": 0.0 if vectors else weight_decay,
            "vectors": vectors,
            "matrices": matrices,
            "pace": pace.lr_scale,
            "wakes": pace.unfreeze_at,
        }
        for (pace, vectors, matrices), held in sorted(found.items(), key=lambda item: item[0])
    ]


def optimizer_state_by_name(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Its state as flat tensors: `encoder.tokens.weight/exp_avg`. A weight that never had a gradient has none."""
    return {
        f"{name}/{slot}": value
        for name, weight in model.named_parameters()
        for slot, value in optimizer.state.get(weight, {}).items()
    }


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The inverse of `by_name`; refuses state of weights that are not here, are frozen, or have another shape."""
    numbers = _param_indices(optimizer)
    known = {name: weight for name, weight in model.named_parameters() if weight in numbers}
    slots: dict[Tensor, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        weight = known.get(name)
        if weight is None or (value.ndim > 0 and value.shape != weight.shape):
            have = f"its shape is {list(weight.shape)}" if weight is not None else "which the model does not train"
            raise UserError(f"the saved optimizer has {key} {list(value.shape)}, {have}: it was saved for another model")
        slots.setdefault(weight, {})[slot] = value
    state = {numbers[weight]: held for weight, held in slots.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _param_indices(optimizer: Optimizer) -> dict[Tensor, int]:
    """torch's own order of the weights, which its state is keyed by."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return {weight: number for number, weight in enumerate(weights)}
