"""Share the weights of layers: one block for each group of consecutive layers, as ALBERT's `num_hidden_groups`."""

from typing import Literal

import msgspec
import torch
from torch import Tensor

from ...errors import UserError
from ...model.config import EncoderConfig
from ...model.model import Model

GroupInit = Literal["average", "first"]
_PREFIX = "encoder.stack.layers."


def group_layers(num_layers: int, num_groups: int) -> list[list[int]]:
    """The layers of each group, as ALBERT divides them."""
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    for layer in range(num_layers):
        groups[int(layer / (num_layers / num_groups))].append(layer)
    return groups


def check_groups(encoder: EncoderConfig, num_groups: int) -> None:
    """Raises a UserError for layers that cannot share weights, or a number of groups that shares nothing."""
    num_layers = encoder.num_hidden_layers
    if encoder.num_hidden_groups not in (None, num_layers):
        raise UserError(
            f"the {num_layers} layers share {encoder.num_hidden_groups} blocks already; leave out num_hidden_groups"
        )
    if num_groups >= num_layers:
        raise UserError(f"num_hidden_groups={num_groups} shares nothing among {num_layers} layers; lower it")
    alike = [encoder.for_layer(layer, num_layers) for layer in range(num_layers)]
    names = ("mixer", "feedforward")
    if any(getattr(config, name) != getattr(alike[0], name) for config in alike for name in names):
        raise UserError("num_hidden_groups needs layers of one mixer and one size; leave it out, or share before you prune")
    if not encoder.first_attention_norm or encoder.residual == "between":
        raise UserError("num_hidden_groups needs a first layer like the others; leave it out")


@torch.no_grad()
def share_layers(model: Model, num_groups: int, init: GroupInit) -> Model:
    """A model whose layers share `num_groups` blocks: the mean of the weights of a group's layers, or those of its first."""
    encoder = model.config.encoder
    check_groups(encoder, num_groups)
    groups = group_layers(encoder.num_hidden_layers, num_groups)
    config = msgspec.structs.replace(
        model.config, encoder=msgspec.structs.replace(encoder, num_hidden_groups=num_groups, layer_sizes=None)
    )
    with torch.random.fork_rng(devices=[]):  # torch's layers draw the weights that are loaded next
        shared = Model(config, init_weights=False)
    weights = model.state_dict()
    shared.load_state_dict({name: _group_weight(weights, name, groups, init) for name in shared.state_dict()})
    return shared.train(model.training)


def _group_weight(weights: dict[str, Tensor], name: str, groups: list[list[int]], init: GroupInit) -> Tensor:
    if not name.startswith(_PREFIX):
        return weights[name].clone()
    group, _, rest = name.removeprefix(_PREFIX).partition(".")
    layers = [weights[f"{_PREFIX}{layer}.{rest}"] for layer in groups[int(group)] if f"{_PREFIX}{layer}.{rest}" in weights]
    return layers[0].clone() if init == "first" else torch.stack(layers).double().mean(0).to(layers[0].dtype)
