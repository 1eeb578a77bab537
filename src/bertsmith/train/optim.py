"""Optimizers: AdamW, the Adam of BERT, LAMB and Muon.

- Adamw, BertAdam, Lamb, Muon: configs (`train.optimizer`) that build a torch optimizer
- build_param_groups: parameter groups by weight decay, Muon, learning rate scale and unfreezing
- optimizer_state_by_name, load_optimizer_state: state keyed by parameter name, for checkpoints
- BertAdamOptimizer, LambOptimizer, MuonAdamW: the optimizers that torch does not have
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import PosFloat, Probability, Variant
from ..errors import UserError
from .param_groups import ParamSchedule, ParamScheduleFn, uniform_schedule

ParamGroups = list[dict[str, Any]]


class Adamw(Variant, frozen=True):
    """torch's fused AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    betas: Annotated[
        tuple[Probability, Probability], "decay rates of the moving averages of the gradient and of its square"
    ] = (0.9, 0.999)
    eps: Annotated[PosFloat, "term added to the denominator for numerical stability"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return torch.optim.AdamW(param_groups, lr=lr, betas=self.betas, eps=self.eps, fused=True)


class BertAdam(Variant, frozen=True):
    """Adam without bias correction, as BERT was trained with."""

    betas: Annotated[
        tuple[Probability, Probability], "decay rates of the moving averages of the gradient and of its square"
    ] = (0.9, 0.999)
    eps: Annotated[PosFloat, "term added to the denominator for numerical stability"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return BertAdamOptimizer(param_groups, lr, self.betas, self.eps)


class Lamb(Variant, frozen=True):
    """LAMB (You et al. 2020), for very large batches."""

    betas: Annotated[
        tuple[Probability, Probability], "decay rates of the moving averages of the gradient and of its square"
    ] = (0.9, 0.999)
    eps: Annotated[PosFloat, "term added to the denominator for numerical stability"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return LambOptimizer(param_groups, lr, self.betas, self.eps)


class Muon(Variant, frozen=True):
    """Muon (Jordan et al. 2024) for the linear layers of the encoder, AdamW for embeddings, heads, biases and norms."""

    momentum: Annotated[Probability, "momentum of the matrix updates"] = 0.95
    lr_multiplier: Annotated[PosFloat, "learning rate of matrices, as a multiple of train.learning_rate"] = 10.0
    betas: Annotated[tuple[Probability, Probability], "betas of AdamW, for all other parameters"] = (
        0.9,
        0.98,
    )
    eps: Annotated[PosFloat, "epsilon of AdamW, for all other parameters"] = 1e-6

    def build(self, param_groups: ParamGroups, lr: float) -> Optimizer:
        return MuonAdamW(param_groups, lr, self.betas, self.eps, self.momentum, self.lr_multiplier)


OptimizerConfig = Adamw | BertAdam | Lamb | Muon


def build_param_groups(
    model: nn.Module, weight_decay: float, param_schedule: ParamScheduleFn = uniform_schedule
) -> ParamGroups:
    """Groups of the trainable parameters that share a ParamSchedule, weight decay and kind.

    Weight decay applies to matrices only, not to biases, norms and other vectors. Keys besides torch's: `vectors` (biases,
    norms), `matrices` (linear layers outside heads, for Muon; the blocks of an
    ELECTRA generator count as no head), `num_parts` (of each parameter, the number of matrices that it
    stacks along dim 0: `num_parts` of its layer), `lr_scale`, `unfreeze_at`. Frozen parameters are in no group.
    """
    groups: dict[tuple[ParamSchedule, bool, bool], list[nn.Parameter]] = {}
    linear_layers = {module.weight: module for module in model.modules() if isinstance(module, nn.Linear)}
    for name, param in model.named_parameters():
        if param.requires_grad:
            matrices = param in linear_layers and (not name.startswith("heads.") or ".stack." in name)
            groups.setdefault((param_schedule(name), param.ndim <= 1, matrices), []).append(param)
    if not groups:
        raise UserError("every weight of the model is frozen: there is nothing to train; freeze less")
    return [
        {
            "params": params,
            "weight_decay": 0.0 if vectors else weight_decay,
            "vectors": vectors,
            "matrices": matrices,
            "num_parts": [getattr(linear_layers.get(param), "num_parts", 1) for param in params],
            "lr_scale": schedule.lr_scale,
            "unfreeze_at": schedule.unfreeze_at,
        }
        for (schedule, vectors, matrices), params in sorted(groups.items(), key=lambda item: item[0])
    ]


def optimizer_state_by_name(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Optimizer state as a flat dict with keys such as `encoder.word_embeddings.weight/exp_avg`.

    Parameters that never had a gradient have no entry.
    """
    return {
        f"{name}/{key}": value
        for name, param in model.named_parameters()
        for key, value in optimizer.state.get(param, {}).items()
    }


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Inverse of `optimizer_state_by_name`; a UserError for parameters that are unknown, frozen or of another shape."""
    indices = _param_indices(optimizer)
    trained = {name: param for name, param in model.named_parameters() if param in indices}
    states: dict[Tensor, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        param = trained.get(name)
        if param is None or (value.ndim > 0 and value.shape != param.shape):
            problem = f"its shape is {list(param.shape)}" if param is not None else "which the model does not train"
            raise UserError(f"the saved optimizer has {key} {list(value.shape)}, {problem}: it was saved for another model")
        states.setdefault(param, {})[slot] = value
    state = {indices[param]: param_state for param, param_state in states.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _param_indices(optimizer: Optimizer) -> dict[Tensor, int]:
    """Index of each parameter over all groups: the key of torch's optimizer state_dict."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    return {param: index for index, param in enumerate(params)}


class _AdamBase(Optimizer):
    """Moving averages of the gradient and its square; subclasses implement `_apply_update` for a whole group (foreach ops)."""

    def __init__(self, param_groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(param_groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self._apply_update(group, params, *self._update_moments(group, params))
        return loss

    def _update_moments(self, group: dict[str, Any], params: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        beta1, beta2 = group["betas"]
        # none is left out; the filter is for the type checker
        grads = [param.grad for param in params if param.grad is not None]
        states = [self._advance_state(param) for param in params]
        exp_avgs, exp_avg_sqs = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
        return exp_avgs, exp_avg_sqs

    def _advance_state(self, param: Tensor) -> dict[str, Tensor]:
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros(())  # on the host: reading it does not synchronize
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
        state["step"] += 1
        return state

    def _apply_update(
        self, group: dict[str, Any], params: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor]
    ) -> None:
        raise NotImplementedError


class BertAdamOptimizer(_AdamBase):
    """Adam with decoupled weight decay and without bias correction, as in google-research/bert `optimization.py`.

    Its first steps are larger than AdamW's by (1 - beta1) / sqrt(1 - beta2), about 3, so warm-up matters more.
    """

    def _apply_update(
        self, group: dict[str, Any], params: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor]
    ) -> None:
        denoms = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_add_(denoms, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(params, exp_avgs, denoms, -group["lr"])


class LambOptimizer(_AdamBase):
    """LAMB (You et al. 2020, algorithm 2): Adam whose update of each matrix is scaled to the norm of the matrix.

    Groups marked `vectors` (biases, norms) take plain Adam updates: the authors' code excludes them from the trust ratio.
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
        beta1, beta2 = group["betas"]
        steps = [int(self.state[param]["step"]) for param in params]
        denoms = list(torch._foreach_div(exp_avg_sqs, [1 - beta2**step for step in steps]))
        torch._foreach_sqrt_(denoms)
        torch._foreach_add_(denoms, group["eps"])
        updates = list(torch._foreach_div(exp_avgs, [1 - beta1**step for step in steps]))
        torch._foreach_div_(updates, denoms)
        return updates


def _trust_ratios(params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """||w|| / ||update|| for each matrix; 1 where either is zero, so that a zero matrix can be updated."""
    pairs = zip(torch._foreach_norm(params), torch._foreach_norm(updates), strict=True)
    return [torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w)) for w, u in pairs]


NEWTON_SCHULZ_COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 5  # of Jordan et al.: singular values end between 0.7 and 1.2


class MuonAdamW(torch.optim.AdamW):
    """Muon (Jordan et al. 2024) for groups marked `matrices`, at lr_multiplier * lr; torch's fused AdamW for the others.

    Matrices of the same shape are orthogonalized in one batch. Where a parameter stacks several matrices along dim 0 (fused
    QKV, GLU; `num_parts` of the group), each is orthogonalized by itself. `step` sets the gradients of matrices to None.
    """

    def __init__(self, param_groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, momentum: float,
                 lr_multiplier: float) -> None:  # fmt: skip
        super().__init__(param_groups, lr=lr, betas=betas, eps=eps, fused=True)
        self.momentum, self.lr_multiplier = momentum, lr_multiplier

    found_inf: Tensor | None = None  # 1.0 to skip the update, as in torch's fused optimizers

    def __setstate__(self, state: dict[str, Any]) -> None:
        # AdamW's requires a `step` for every parameter, which matrices have not
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            if group["matrices"]:
                self._apply_muon_update(group)
        return super().step(closure)

    def _apply_muon_update(self, group: dict[str, Any]) -> None:
        stacks = [  # (parameter, number of matrices)
            stack for stack in zip(group["params"], group["num_parts"], strict=True) if stack[0].grad is not None
        ]
        if not stacks:
            return
        params, lr, weight_decay = [param for param, _ in stacks], group["lr"] * self.lr_multiplier, group["weight_decay"]
        grads = [param.grad for param in params]
        momentums = [self.state[param].setdefault("momentum", torch.zeros_like(param)) for param in params]
        keep: Tensor | float = 1.0
        if self.found_inf is not None:  # decided on the device; NaN gradients must not spread by 0 * NaN
            keep = 1 - self.found_inf
            grads = [torch.where(keep > 0, grad, 0.0) for grad in grads]
        deltas = torch._foreach_sub(grads, momentums)
        torch._foreach_mul_(deltas, keep * (1 - self.momentum))
        torch._foreach_add_(momentums, deltas)
        updates = _orthogonalize(stacks, list(torch._foreach_lerp(grads, momentums, self.momentum)))
        if weight_decay:
            torch._foreach_mul_(params, 1 - keep * (lr * weight_decay))
        torch._foreach_mul_(updates, keep * -lr)
        torch._foreach_add_(params, updates)
        for param in params:
            param.grad = None


def _orthogonalize(stacks: list[tuple[Tensor, int]], updates: list[Tensor]) -> list[Tensor]:
    """Orthogonalizes each update, batched by shape, times sqrt(max(1, rows / columns)).

    stacks: the parameter of each update, and the number of matrices that it stacks.
    """
    by_shape: dict[tuple[int, int, int], list[int]] = {}
    for index, (param, parts) in enumerate(stacks):
        by_shape.setdefault((parts, len(param) // parts, param.shape[1]), []).append(index)
    for (parts, rows, columns), indices in by_shape.items():
        stacked = torch.stack([updates[index] for index in indices]).reshape(-1, rows, columns)
        orthogonal = newton_schulz(stacked) * max(1.0, rows / columns) ** 0.5
        for index, update in zip(indices, orthogonal.reshape(-1, parts * rows, columns), strict=True):
            updates[index] = update.to(stacks[index][0].dtype)
    return updates


def newton_schulz(x: Tensor) -> Tensor:
    """Approximately orthogonalizes x (matrices, rows, columns): five Newton-Schulz iterations bring singular values near 1.

    Computed in bfloat16 on a GPU, where it is accurate enough, and in float32 on a CPU, where bfloat16 is slow.
    """
    is_tall = x.shape[1] > x.shape[2]
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for a, b, c in NEWTON_SCHULZ_COEFFICIENTS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x
