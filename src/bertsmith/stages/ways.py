"""Ways to fine-tune: what is frozen, what learns slower or later, by how deep in the model each weight lies."""

import re
from typing import Literal

from ..errors import BadInput
from ..model.model import Model
from ..train.pace import Pace, Paces

_BLOCK = re.compile(r"encoder\.stack\.blocks\.(\d+)\.")
_ABOVE = ("heads.", "decoder.", "encoder.pooler.", "encoder.stack.norm.")


def depth(name: str, blocks: int) -> int:
    """0 for embeddings, 1 for the lowest block, one more for what is above all of them: last norm, pooler and heads."""
    found = _BLOCK.match(name)
    return int(found[1]) + 1 if found else blocks + 1 if name.startswith(_ABOVE) else 0


def freeze(model: Model, layers: int | Literal["embeddings", "all"]) -> None:
    """What is frozen drops nothing out either: it gives the same features for the same text, always."""
    stack, encoder = model.encoder.stack, model.encoder
    blocks = len(stack.blocks)
    count = blocks if layers == "all" else 0 if layers == "embeddings" else layers
    if count > blocks:
        raise BadInput(f"freeze={layers} is more than the model's {blocks} blocks; take fewer, or freeze=all")
    if layers == 0:
        return
    for name, weight in model.named_parameters():
        if depth(name, blocks) <= count:
            weight.requires_grad_(False)
    if layers == "all":
        stack.norm.requires_grad_(False)
    model.still = (encoder.drop, *list(stack.blocks)[:count])


def paces(blocks: int, decay: float = 1.0, thaw: float = 0.0, head: float = 1.0) -> Paces:
    """Each block at `decay` times the rate of the one above it; waking from the top down over `thaw` of the run."""

    def pace(name: str) -> Pace:
        below = blocks + 1 - depth(name, blocks)
        rate = head if name.startswith("heads.") else 1.0
        return Pace(rate * decay**below, thaw * below / (blocks + 1))

    return pace
