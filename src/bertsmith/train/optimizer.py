"""The optimizers a recipe can name, the weights they decay, and their state by the names of the weights."""

from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import Chance, Positive, Variant
from ..errors import BadInput
from .adams import LayerwiseAdam, UncorrectedAdam
from .muon import MuonAdamw
from .pace import Pace, Paces, alike

Groups = list[dict[str, Any]]


class Adamw(Variant, frozen=True):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), torch's own."""

    betas: Annotated[tuple[Chance, Chance], "memory of the mean of the gradient, and of its square"] = (0.9, 0.999)
    eps: Annotated[Positive, "added to the root of the mean square"] = 1e-6

    def build(self, groups: Groups, rate: float) -> Optimizer:
        return torch.optim.AdamW(groups, lr=rate, betas=self.betas, eps=self.eps, fused=True)


class BertAdam(Variant, frozen=True):
    """The Adam that BERT was trained with: no bias correction."""

    betas: Annotated[tuple[Chance, Chance], "memory of the mean of the gradient, and of its square"] = (0.9, 0.999)
    eps: Annotated[Positive, "added to the root of the mean square"] = 1e-6

    def build(self, groups: Groups, rate: float) -> Optimizer:
        return UncorrectedAdam(groups, rate, self.betas, self.eps)


class Lamb(Variant, frozen=True):
    """LAMB, for very large batches."""

    betas: Annotated[tuple[Chance, Chance], "memory of the mean of the gradient, and of its square"] = (0.9, 0.999)
    eps: Annotated[Positive, "added to the root of the mean square"] = 1e-6

    def build(self, groups: Groups, rate: float) -> Optimizer:
        return LayerwiseAdam(groups, rate, self.betas, self.eps)


class Muon(Variant, frozen=True):
    """Muon for the matrices between layers, AdamW for tables, heads and vectors."""

    momentum: Annotated[Chance, "memory of the gradient of a matrix"] = 0.95
    times: Annotated[Positive, "the rate of matrices, as a multiple of train.rate"] = 10.0
    betas: Annotated[tuple[Chance, Chance], "AdamW's memory of the mean of the gradient, and of its square"] = (0.9, 0.98)
    eps: Annotated[Positive, "AdamW's, added to the root of the mean square"] = 1e-6

    def build(self, groups: Groups, rate: float) -> Optimizer:
        return MuonAdamw(groups, rate, self.betas, self.eps, self.momentum, self.times)


OptimizerConfig = Adamw | BertAdam | Lamb | Muon


def groups(model: nn.Module, decay: float, paces: Paces = alike) -> Groups:
    """Matrices decay; biases, norms and lone vectors do not. Frozen weights are in no group; each pace has its own."""
    found: dict[tuple[Pace, bool, bool], list[nn.Parameter]] = {}
    between = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            matrices = weight in between and not name.startswith("heads.")
            found.setdefault((paces(name), weight.ndim <= 1, matrices), []).append(weight)
    if not found:
        raise BadInput("every weight of the model is frozen: there is nothing to train; freeze less")
    return [
        {
            "params": held,
            "weight_decay": 0.0 if vectors else decay,
            "vectors": vectors,
            "matrices": matrices,
            "pace": pace.rate,
            "wakes": pace.wakes,
        }
        for (pace, vectors, matrices), held in sorted(found.items(), key=lambda item: item[0])
    ]


def by_name(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Its state as flat tensors: `encoder.tokens.weight/exp_avg`. A weight that never had a gradient has none."""
    return {
        f"{name}/{slot}": value
        for name, weight in model.named_parameters()
        for slot, value in optimizer.state.get(weight, {}).items()
    }


def restore(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The inverse of `by_name`; refuses state of weights that are not here, are frozen, or have another shape."""
    numbers = _numbers(optimizer)
    known = {name: weight for name, weight in model.named_parameters() if weight in numbers}
    slots: dict[Tensor, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        weight = known.get(name)
        if weight is None or (value.ndim > 0 and value.shape != weight.shape):
            have = f"its shape is {list(weight.shape)}" if weight is not None else "which the model does not train"
            raise BadInput(f"the saved optimizer has {key} {list(value.shape)}, {have}: it was saved for another model")
        slots.setdefault(weight, {})[slot] = value
    state = {numbers[weight]: held for weight, held in slots.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _numbers(optimizer: Optimizer) -> dict[Tensor, int]:
    """torch's own order of the weights, which its state is keyed by."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return {weight: number for number, weight in enumerate(weights)}
