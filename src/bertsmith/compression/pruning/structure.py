"""Remove attention heads, feed-forward neurons and layers from a model: the matrices shrink, the sizes go into its config.

- count_heads, count_neurons: the units of a block
- KeptUnits, remove_units: the model with the kept heads and neurons of each block
- find_live_units: the heads and neurons whose weights are not all zero
- remove_layers: the model without some of its layers
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from ...errors import UserError
from ...model.config import EncoderConfig, LayerSizes
from ...model.mixers.attention import Attention, SelfAttention
from ...model.model import Model, ModelConfig
from ...model.sublayers import FeedForwardLayer
from ...model.transformer import Block

_BLOCK = re.compile(r"encoder\.stack\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class KeptUnits:
    """Indices of the heads and neurons of a block that stay, in ascending order; None: all of them."""

    heads: tuple[int, ...] | None = None
    neurons: tuple[int, ...] | None = None


def count_heads(block: Block) -> int:
    """Attention heads of a block; 0 if its heads cannot be removed."""
    return block.mixer.projections.num_heads if isinstance(block.mixer, SelfAttention) else 0


def count_neurons(block: Block) -> int:
    """Inner size of a block's feed-forward layer; 0 if it has none that can be pruned."""
    return block.feedforward.output.in_features if isinstance(block.feedforward, FeedForwardLayer) else 0


def check_heads(encoder: EncoderConfig) -> None:
    """Raises a UserError for an encoder whose heads cannot be removed one by one."""
    mixer = encoder.mixer
    if encoder.layer_types or not isinstance(mixer, Attention) or mixer.directions == "apart":
        raise UserError("unit=head needs layers with mixer=attention; leave it out (unit=neuron, layer and vocab work with "
                       "every mixer)")  # fmt: skip
    if mixer.position_bias is not None:
        raise UserError("unit=head cannot remove heads that have a position bias (alibi, t5, shaw) of their own; leave it out")


def check_neurons(encoder: EncoderConfig) -> None:
    """Raises a UserError for an encoder without a feed-forward layer in each block."""
    if encoder.feedforward is None or encoder.separates_directions:
        raise UserError("unit=neuron needs a model with one feed-forward layer in each layer; leave it out")


@torch.no_grad()
def remove_units(model: Model, kept: Sequence[KeptUnits]) -> Model:
    """A model with only the kept heads and neurons of each block; what they compute is unchanged.

    The biases of the removed units go with them, the output biases stay.
    """
    blocks: list[Block] = list(model.encoder.stack.layers)  # type: ignore[arg-type]
    encoder = model.config.encoder
    config = msgspec.structs.replace(model.config, encoder=_with_sizes(encoder, blocks, kept))
    weights = {}
    for name, weight in model.state_dict().items():
        match = _BLOCK.fullmatch(name)
        weights[name] = _slice(blocks[int(match[1])], kept[int(match[1])], match[2], weight) if match else weight
    return _rebuild(model, config, weights)


def find_live_units(model: Model) -> list[KeptUnits]:
    """The heads and neurons of each block that reach the output: some weight of the matrix that reads them is not zero.

    At least one of each stays.
    """
    blocks: list[Block] = list(model.encoder.stack.layers)  # type: ignore[arg-type]
    return [
        KeptUnits(
            _live_columns(block.mixer.projections.output.weight, count_heads(block)) if count_heads(block) else None,  # type: ignore[union-attr,arg-type]
            _live_columns(block.feedforward.output.weight, count_neurons(block)) if count_neurons(block) else None,  # type: ignore[union-attr,arg-type]
        )
        for block in blocks
    ]


@torch.no_grad()
def remove_layers(model: Model, layers: Iterable[int]) -> Model:
    """A model without these layers (0: the lowest). Layers that all share one block become fewer calls of that block."""
    encoder, removed = model.config.encoder, set(layers)
    check_layers(encoder)
    kept = [layer for layer in range(encoder.num_hidden_layers) if layer not in removed]
    if not kept:
        raise UserError("all layers would be removed; keep at least one")
    is_shared = encoder.num_hidden_groups == 1
    sizes = encoder.layer_sizes
    smaller = msgspec.structs.replace(
        encoder,
        num_hidden_layers=len(kept),
        layer_sizes=sizes if sizes is None or is_shared else _select_sizes(sizes, kept),
    )
    new_index = {0: 0} if is_shared else {layer: index for index, layer in enumerate(kept)}
    weights = {}
    for name, weight in model.state_dict().items():
        if not (match := _BLOCK.fullmatch(name)):
            weights[name] = weight
        elif int(match[1]) in new_index:
            weights[f"encoder.stack.layers.{new_index[int(match[1])]}.{match[2]}"] = weight
    return _rebuild(model, msgspec.structs.replace(model.config, encoder=smaller), weights)


def check_layers(encoder: EncoderConfig) -> None:
    """Raises a UserError for an encoder whose layers cannot be removed one by one."""
    alike = msgspec.structs.replace(encoder, layer_sizes=None)
    mixers = [alike.for_layer(layer, encoder.num_hidden_layers).mixer for layer in range(encoder.num_hidden_layers)]
    if encoder.num_hidden_groups not in (None, 1, encoder.num_hidden_layers):
        raise UserError(f"unit=layer cannot remove layers of a model whose {encoder.num_hidden_layers} layers share "
                       f"{encoder.num_hidden_groups} blocks; leave it out")  # fmt: skip
    if any(mixer != mixers[0] for mixer in mixers):
        raise UserError("unit=layer cannot remove layers of a model whose mixers differ by layer; leave it out")
    is_tied = getattr(getattr(encoder.mixer, "position_bias", None), "shared", False)
    if not encoder.first_attention_norm or encoder.residual == "between" or is_tied:
        raise UserError("unit=layer cannot remove layers of a model whose first layer is unlike the others; leave it out")


def _live_columns(weight: Tensor, num_units: int) -> tuple[int, ...]:
    is_live = weight.unflatten(1, (num_units, -1)).ne(0).any(-1).any(0)
    return tuple(is_live.nonzero().flatten().tolist()) or (0,)


def _rebuild(model: Model, config: ModelConfig, weights: dict[str, Tensor]) -> Model:
    """A model of this config with these weights, in the same mode and on the same device."""
    if model.decoder is not None:
        raise UserError("a model with a decoder cannot be pruned; prune the encoder that it was fine-tuned from")
    with torch.random.fork_rng(devices=[]):  # torch's layers draw the weights that are loaded next
        smaller = Model(config, init_weights=False)
    smaller.load_state_dict({name: weight.clone() for name, weight in weights.items()})
    return smaller.to(next(model.parameters()).device).train(model.training)


def _with_sizes(encoder: EncoderConfig, blocks: Sequence[Block], kept: Sequence[KeptUnits]) -> EncoderConfig:
    """The encoder with layers of these sizes; a feed-forward size that all layers have is that of the encoder."""
    heads = tuple(count_heads(block) if units.heads is None else len(units.heads) for block, units in _pair(blocks, kept))
    widths = tuple(
        count_neurons(block) if units.neurons is None else len(units.neurons) for block, units in _pair(blocks, kept)
    )
    if encoder.feedforward is not None and len({*widths}) == 1 and widths[0]:
        feedforward = msgspec.structs.replace(encoder.feedforward, intermediate_size=widths[0])
        encoder, widths = msgspec.structs.replace(encoder, feedforward=feedforward), ()
    has_all_heads = {*heads} <= {0, getattr(encoder.mixer, "num_attention_heads", 0)}
    sizes = LayerSizes(None if has_all_heads else heads, widths if widths and all(widths) else None)
    return msgspec.structs.replace(encoder, layer_sizes=None if sizes == LayerSizes() else sizes)


def _pair(blocks: Sequence[Block], kept: Sequence[KeptUnits]) -> Iterable[tuple[Block, KeptUnits]]:
    return zip(blocks, kept, strict=True)


def _select_sizes(sizes: LayerSizes, layers: Sequence[int]) -> LayerSizes:
    """The sizes of these layers."""
    values = (sizes.num_attention_heads, sizes.intermediate_size)
    return LayerSizes(*(value and tuple(value[layer] for layer in layers) for value in values))


def _slice(block: Block, units: KeptUnits, name: str, weight: Tensor) -> Tensor:
    """The rows and columns of a block's parameter that belong to the kept units."""
    if units.heads is not None and name.startswith("mixer.projections."):
        return _slice_units(weight, units.heads, count_heads(block), 3, name.removeprefix("mixer.projections."), "qkv")
    if units.neurons is not None and name.startswith("feedforward."):
        num_parts = 2 if isinstance(block.feedforward, FeedForwardLayer) and block.feedforward.is_gated else 1
        return _slice_units(
            weight, units.neurons, count_neurons(block), num_parts, name.removeprefix("feedforward."), "intermediate"
        )
    return weight


def _slice_units(weight: Tensor, kept: Sequence[int], num_units: int, num_parts: int, name: str, into: str) -> Tensor:
    """Rows of the projection into the units (`into`, which stacks `num_parts` matrices), columns of the one out of them."""
    index = torch.tensor(kept, device=weight.device)
    if name.startswith(f"{into}."):
        return weight.unflatten(0, (num_parts, num_units, -1)).index_select(1, index).flatten(0, 2)
    if name == "output.weight":
        return weight.unflatten(1, (num_units, -1)).index_select(1, index).flatten(1)
    return weight
