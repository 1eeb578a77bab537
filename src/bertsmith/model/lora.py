"""LoRA (Hu et al. 2021): a trained low-rank update B A of each frozen weight matrix, merged into it after training."""

import math
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config, PosFloat, PosInt, Probability
from .adapter import A_SUFFIX, B_SUFFIX
from .model import Model


class LoraConfig(Config, frozen=True):
    """Rank, scaling and target modules of LoRA (Hu et al. 2021)."""

    r: Annotated[PosInt, "rank of the update matrices"] = 8
    lora_alpha: Annotated[PosFloat, "scaling: updates are multiplied by lora_alpha / r"] = 16.0
    lora_dropout: Annotated[Probability, "dropout on the input of the update matrices"] = 0.0
    target_modules: Annotated[
        Literal["attention", "all"], "matrices with an update: those of attention, or all (feed-forward too)"
    ] = "attention"
    merge: Annotated[
        bool, "write the merged weights; false: the updates alone, about 1 MB, which are merged into the base model at load"
    ] = True


class LoRALinear(nn.Module):
    """y = W x + b + (lora_alpha / r) B A x, with W and b frozen.

    A fused weight of `num_parts` matrices (queries, keys and values) has a low-rank update for each of them.
    `down` (A): (num_parts * r, in_features); `up` (B): (num_parts, out_features / num_parts, r), zero at first.
    """

    def __init__(self, base: nn.Linear, config: LoraConfig, num_parts: int) -> None:
        super().__init__()
        self.base, self.num_parts, self.scaling = base, num_parts, config.lora_alpha / config.r
        self.drop = nn.Dropout(config.lora_dropout)
        self.lora_A = nn.Parameter(torch.empty(num_parts * config.r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(num_parts, base.out_features // num_parts, config.r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low_rank = F.linear(self.drop(x), self.lora_A).unflatten(-1, (self.num_parts, -1))
        update = torch.einsum("...pr,por->...po", low_rank, self.lora_B.to(low_rank.dtype)).flatten(-2)
        return self.base(x) + self.scaling * update

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Add the low-rank update to the base weight, and return the base layer."""
        lora_a = self.lora_A.unflatten(0, (self.num_parts, -1))
        self.base.weight += self.scaling * (self.lora_B @ lora_a).flatten(0, 1)
        return self.base


def inject_adapters(model: Model, config: LoraConfig, seed: int) -> None:
    """Freeze the encoder but for its pooler, and replace the target linear layers by `LoRALinear`, in place."""
    for name, parameter in model.encoder.named_parameters():
        parameter.requires_grad_(name.startswith("pooler."))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for parent, name, linear in _target_linears(model, config):
            setattr(parent, name, LoRALinear(linear, config, getattr(linear, "num_parts", 1)))


class LoraUpdate(NamedTuple):
    """The updates of a trained model as an adapter stores them: float16 tensors by name, and their factor."""

    tensors: dict[str, Tensor]
    scaling: float


@torch.no_grad()
def extract_update(model: Model) -> LoraUpdate:
    """The updates in float16, to which the model's own are rounded, so that it answers as what is loaded again does.

    The weights of heads are rounded too: they are stored in float16 then.
    """
    update, scaling = dict[str, Tensor](), 0.0
    for parameter in model.heads.parameters():
        parameter.copy_(parameter.half())
    for name, module in model.named_modules():
        if isinstance(module, LoRALinear):
            scaling = module.scaling
            for suffix, parameter in ((A_SUFFIX, module.lora_A), (B_SUFFIX, module.lora_B)):
                update[f"{name}.weight{suffix}"] = rounded = parameter.detach().cpu().half()
                parameter.copy_(rounded)
    return LoraUpdate(update, scaling)


def merge_and_unload(model: Model) -> None:
    """Merge every `LoRALinear` into its base layer and put that back, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                setattr(parent, name, child.merge())


def _target_linears(model: Model, config: LoraConfig) -> list[tuple[nn.Module, str, nn.Linear]]:
    """(parent module, attribute name, linear layer) of every layer that gets an adapter."""
    targets: list[nn.Module] = []
    for block in model.encoder.stack.layers:
        targets += [block.mixer, *[block.feedforward] * (config.target_modules == "all" and block.feedforward is not None)]  # type: ignore[list-item]
    return [
        (parent, name, child)
        for target in targets
        for parent in target.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
