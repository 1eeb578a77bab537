"""LoRA: a frozen matrix and a small one beside it that learns; afterwards they are added, and the model is as before."""

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Chance, Config, Count, Positive
from .model import Model


class Lora(Config, frozen=True):
    """Hu et al. 2021."""

    rank: Annotated[Count, "numbers a token passes through on its way beside a matrix"] = 8
    alpha: Annotated[Positive, "what is learnt counts alpha / rank"] = 16.0
    dropout: Annotated[Chance, "on what goes beside the matrix"] = 0.0
    on: Annotated[Literal["attention", "all"], "the matrices of attention, or those of the feed-forward too"] = "attention"


class Beside(nn.Module):
    """`parts` matrices lie one above another in one (queries, keys, values): each has its own small one."""

    def __init__(self, base: nn.Linear, config: Lora, parts: int) -> None:
        super().__init__()
        self.base, self.parts, self.scale = base, parts, config.alpha / config.rank
        self.drop = nn.Dropout(config.dropout)
        self.down = nn.Parameter(torch.empty(parts * config.rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(parts, base.out_features // parts, config.rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(self.drop(x), self.down).unflatten(-1, (self.parts, -1))
        beside = torch.einsum("...pr,por->...po", low, self.up.to(low.dtype)).flatten(-2)
        return self.base(x) + self.scale * beside

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One matrix that does what the two did."""
        low = self.down.unflatten(0, (self.parts, -1))
        self.base.weight += self.scale * (self.up @ low).flatten(0, 1)
        return self.base


def adapt(model: Model, config: Lora, seed: int) -> None:
    """Freezes the encoder below its pooler, and puts small matrices beside its own, all in place."""
    for name, weight in model.encoder.named_parameters():
        weight.requires_grad_(name.startswith("pooler."))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for owner, name, linear in _linears(model, config):
            setattr(owner, name, Beside(linear, config, getattr(linear.weight, "parts", 1)))


def merge(model: Model) -> None:
    """Every small matrix into the one it stands beside, in place."""
    for owner in list(model.modules()):
        for name, part in list(owner.named_children()):
            if isinstance(part, Beside):
                setattr(owner, name, part.merged())


def _linears(model: Model, config: Lora) -> list[tuple[nn.Module, str, nn.Linear]]:
    parts: list[nn.Module] = []
    for block in model.encoder.stack.blocks:
        parts += [block.mixer, *[block.feedforward] * (config.on == "all" and block.feedforward is not None)]  # type: ignore[list-item]
    return [
        (owner, name, child)
        for part in parts
        for owner in part.modules()
        for name, child in owner.named_children()
        if isinstance(child, nn.Linear)
    ]
