"""LoRA: a frozen matrix and a small one beside it that learns; afterwards they are added, and the model is as before."""

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config, PosFloat, PosInt, Probability
from .model import Model


class LoraConfig(Config, frozen=True):
    """Hu et al. 2021."""

    rank: Annotated[PosInt, "numbers a token passes through on its way beside a matrix"] = 8
    alpha: Annotated[PosFloat, "what is learnt counts alpha / rank"] = 16.0
    dropout: Annotated[Probability, "on what goes beside the matrix"] = 0.0
    on: Annotated[Literal["attention", "all"], "the matrices of attention, or those of the feed-forward too"] = "attention"


class LoRALinear(nn.Module):
    """`parts` matrices lie one above another in one (queries, keys, values): each has its own small one."""

    def __init__(self, base: nn.Linear, config: LoraConfig, num_parts: int) -> None:
        super().__init__()
        self.base, self.num_parts, self.scaling = base, num_parts, config.alpha / config.rank
        self.drop = nn.Dropout(config.dropout)
        self.down = nn.Parameter(torch.empty(num_parts * config.rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(num_parts, base.out_features // num_parts, config.rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(self.drop(x), self.down).unflatten(-1, (self.num_parts, -1))
        beside = torch.einsum("...pr,por->...po", low, self.up.to(low.dtype)).flatten(-2)
        return self.base(x) + self.scaling * beside

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """One matrix that does what the two did."""
        low = self.down.unflatten(0, (self.num_parts, -1))
        self.base.weight += self.scaling * (self.up @ low).flatten(0, 1)
        return self.base


def inject_adapters(model: Model, config: LoraConfig, seed: int) -> None:
    """Freezes the encoder below its pooler, and puts small matrices beside its own, all in place."""
    for name, weight in model.encoder.named_parameters():
        weight.requires_grad_(name.startswith("pooler."))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for owner, name, linear in _target_linears(model, config):
            setattr(owner, name, LoRALinear(linear, config, getattr(linear.weight, "parts", 1)))


def merge_and_unload(model: Model) -> None:
    """Every small matrix into the one it stands beside, in place."""
    for owner in list(model.modules()):
        for name, part in list(owner.named_children()):
            if isinstance(part, LoRALinear):
                setattr(owner, name, part.merge())


def _target_linears(model: Model, config: LoraConfig) -> list[tuple[nn.Module, str, nn.Linear]]:
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
