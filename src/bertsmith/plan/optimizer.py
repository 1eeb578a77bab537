"""What an optimizer keeps and needs, asked of itself: it moves a model of the same parts, sixteen times as narrow."""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..model.model import ModelConfig
from ..train import optimizer
from ..train.recipe import Train
from .ledger import Ledger
from .step import blank

NARROWER = 16


class Slot(NamedTuple):
    """A tensor of its state."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Kept(NamedTuple):
    slots: dict[str, Slot]  # by the name of the weight and its own
    update: int  # bytes that come and go while the weights move

    @property
    def state(self) -> int:
        return sum(slot.bytes for slot in self.slots.values())


def kept(config: ModelConfig, train: Train) -> Kept:
    """By two of its steps."""
    model = blank(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    whole = sum(weight.nbytes for weight in model.parameters())
    _narrow(model)
    small = dict(model.named_parameters())
    built = train.optimizer.build(optimizer.groups(model, train.decay), train.rate)
    for _ in range(2):  # the first step makes the state
        _give_gradients(model)
        with Ledger() as ledger:
            built.step()
    slots = {key: _widened(value, small[key.rpartition("/")[0]], shapes[key.rpartition("/")[0]])
             for key, value in optimizer.by_name(built, model).items()}  # fmt: skip
    share = ledger.most / sum(weight.nbytes for weight in small.values())
    return Kept(slots, int(share * whole))


def _narrow(model: nn.Module) -> None:
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            shape = [max(1, size // NARROWER) for size in weight.shape]
            setattr(module, name, nn.Parameter(torch.ones(shape, dtype=weight.dtype), weight.requires_grad))


def _give_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)


def _widened(value: Tensor, small: Tensor, shape: tuple[int, ...]) -> Slot:
    """As the whole weight would have it; a tensor of another shape than its weight grows as the weight does."""
    if value.ndim == 0 or value.numel() == 1 != small.numel():
        return Slot(tuple(value.shape), value.dtype)
    if value.shape == small.shape:
        return Slot(shape, value.dtype)
    return Slot((value.numel() * prod(shape) // small.numel(),), value.dtype)
