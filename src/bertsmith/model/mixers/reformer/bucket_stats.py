"""Whom hashes bring together: how many a token meets, and how much of what it would look at is among them."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...batch import Inputs
from ...model import Model
from .layer import HashedAttention
from .lsh import unit


class Census(NamedTuple):
    """Of one layer, a number for each head."""

    met: list[float]  # others that a token meets in all rounds together, on average
    alone: list[float]  # share of the tokens that meet nobody, though others are there
    caught: list[float]  # share of the weight that one bucket for all would give to those it meets


@torch.inference_mode()
def census(model: Model, inputs: Inputs) -> list[Census]:
    """Of every layer that hashes. The squares of all scores are looked at: give texts of a few thousand tokens."""
    found: list[Census] = []
    mixers = [mixer for mixer in model.encoder.stack.mixers if isinstance(mixer, HashedAttention) and mixer.hashes]
    hooks = [mixer.register_forward_pre_hook(partial(_counted, found)) for mixer in dict.fromkeys(mixers)]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _counted(found: list[Census], mixer: HashedAttention, given: tuple[Tensor, ...]) -> None:
    x, layout = given[0], given[1]
    qk = mixer.project(x).unflatten(-1, (2, mixer.config.heads, -1)).unbind(-3)[0].transpose(0, 1)
    _, code = mixer.sort(qk, layout)  # type: ignore[arg-type]
    owner, place = layout.owner, layout.place  # type: ignore[attr-defined]
    others = (owner == owner[:, None]) & ~torch.eye(len(owner), dtype=torch.bool, device=x.device)
    others = others & (place < place[:, None]) if mixer.config.causal else others
    together = torch.zeros(len(qk), *others.shape, dtype=torch.bool, device=x.device)
    for each in code:
        together |= (each[:, :, None] - each[:, None]).abs() <= mixer.config.reach
    together &= others
    weights = (qk @ unit(qk).mT).masked_fill(~others, float("-inf")).softmax(-1)
    anyone, met = others.any(-1), together.sum(-1)[:, others.any(-1)].float()
    caught = (weights * together).sum(-1)[:, anyone]
    found.append(Census(met.mean(-1).tolist(), (met == 0).float().mean(-1).tolist(), caught.mean(-1).tolist()))
