"""Another mixer, or a longer table of positions, for a model that has been trained: what of its weights still serves."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from ..config import to_kebab_case
from ..errors import UserError
from .config import EncoderConfig
from .mixers import Attention, Longformer, MixerConfig
from .transformer import Stack

QKV_PREFIX, GLOBAL_QKV_PREFIX, POSITION_EMBEDDINGS = "project.qkv.", "anchored.", "encoder.positions.weight"
MIXER_WEIGHT = re.compile(r"encoder\.stack\.blocks\.(\d+)\.mixer\.")
INHERITED_FIELDS = ("heads", "bias", "rotary", "causal", "distance", "dynamic", "filters", "size", "activation")
"""With others the same weights would mean something else."""


def replace_mixer(encoder: EncoderConfig, mixer: MixerConfig) -> EncoderConfig:
    """The same encoder with another mixer; refused where that has weights that the trained one lacks, or has no use for some.

    What decides the meaning of the weights (heads, direction and the like) stays; only what is said otherwise is refused.
    """
    old = encoder.mixer
    if isinstance(old, Attention) and old.distance is not None and isinstance(mixer, Longformer):
        raise UserError(f"mixer=window knows nothing of mixer.distance={_kind_of(old.distance)}, by which this model tells places "
                       "apart; stay with mixer=dense, or train one with a table of positions or mixer.rotary")  # fmt: skip
    new = msgspec.structs.replace(encoder, mixer=_inherit_fields(mixer, old))
    had, wants = _weight_shapes(encoder), _weight_shapes(new)
    lacking, spare = wants.keys() - had.keys(), had.keys() - wants.keys()
    other = {name for name in wants.keys() & had.keys() if wants[name] != had[name]}
    if lacking or spare or other:
        raise UserError(f"mixer={_kind_of(mixer)} cannot take over the weights of mixer={_kind_of(old)}: "
                       f"{_mismatch_message(lacking, spare, other)}; train one from the beginning")  # fmt: skip
    _check_inherited_fields(mixer, new.mixer)
    return new


def merge_mixer_config(requested: MixerConfig, trained: MixerConfig) -> MixerConfig:
    """What is said of a mixer of the same kind, where all that is not said stays as it was trained; what is usual counts as
    not said. Of another kind there is nothing to go on with."""
    if type(requested) is not type(trained):
        return requested
    usual = type(requested)()
    return msgspec.structs.replace(trained, **{
        name: value for name in requested.__struct_fields__ if (value := getattr(requested, name)) != getattr(usual, name)
    })  # fmt: skip


def convert_weights(weights: dict[str, Tensor], encoder: EncoderConfig) -> dict[str, Tensor]:
    """A model's weights for this encoder: anchors begin with the matrices of all tokens, positions are tiled to its length."""
    out = {}
    for name, tensor in weights.items():
        found = MIXER_WEIGHT.match(name)
        anchored, part = found and _has_global_attention(encoder, int(found[1])), name[found.end() :] if found else ""
        if anchored or not part.startswith(GLOBAL_QKV_PREFIX):
            out[name] = tensor
        if (
            found
            and anchored
            and part.startswith(QKV_PREFIX)
            and (copy := found[0] + part.replace(QKV_PREFIX, GLOBAL_QKV_PREFIX)) not in weights
        ):
            out[copy] = tensor.clone()
    if POSITION_EMBEDDINGS in out:
        out[POSITION_EMBEDDINGS] = tile_positions(out[POSITION_EMBEDDINGS], encoder.positions)
    return out


def tile_positions(table: Tensor, num_positions: int) -> Tensor:
    """As many rows as asked for, those there are again and again: what is near keeps its distance but at the seams."""
    return table[torch.arange(num_positions) % len(table)] if num_positions > len(table) else table[:num_positions].clone()


def extend_positions(encoder: EncoderConfig, num_positions: int) -> EncoderConfig:
    if num_positions < encoder.positions:
        raise UserError(f"length {num_positions:,} is less than the model's {encoder.positions:,} positions, which it need not lose; "
                       f"take {encoder.positions} or more")  # fmt: skip
    return msgspec.structs.replace(encoder, positions=num_positions)


def _inherit_fields(mixer: Any, trained: Any) -> Any:
    """It, with what decides the meaning of the weights as it was trained."""
    usual = {"heads": 1}  # of a mixer that has none: any serves to tell what else it lacks
    return msgspec.structs.replace(mixer, **{
        name: getattr(trained, name, usual.get(name, getattr(type(mixer)(), name))) for name in INHERITED_FIELDS if _has_field(mixer, name)
    })  # fmt: skip


def _check_inherited_fields(requested: Any, inherited: Any) -> None:
    usual = type(requested)()
    for name in filter(lambda name: _has_field(requested, name), INHERITED_FIELDS):
        asked, is_ = getattr(requested, name), getattr(inherited, name)
        if asked not in (is_, getattr(usual, name)):
            raise UserError(f"mixer.{name} = {asked} is not what the weights were trained with, {is_}; leave it out")


def _has_global_attention(encoder: EncoderConfig, block: int) -> bool:
    mixer = encoder.for_layer(block, encoder.groups or encoder.layers).mixer
    return isinstance(mixer, Longformer) and mixer.anchors


def _weight_shapes(encoder: EncoderConfig) -> dict[str, torch.Size]:
    """The shapes of all blocks' but for anchors', which come and go, by name."""
    with torch.device("meta"):
        found = Stack(encoder).state_dict().items()
    return {name: tensor.shape for name, tensor in found if f".mixer.{GLOBAL_QKV_PREFIX}" not in name}


def _mismatch_message(missing: set[str], unused: set[str], reshaped: set[str]) -> str:
    told = {"it needs": missing, "it has no use for": unused, "other shapes has": reshaped}
    parts = {what: sorted({name.split(".mixer.")[-1] for name in names})[:4] for what, names in told.items()}
    return ", ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)


def _has_field(mixer: Any, name: str) -> bool:
    return name in mixer.__struct_fields__


def _kind_of(mixer: Any) -> str:
    return str(mixer.__struct_config__.tag or to_kebab_case(type(mixer).__name__))


VOCAB_TABLES = ("encoder.tokens.weight", "heads.words.bias", "heads.words.table.weight")  # a row, or a number, for every token


def resize_token_embeddings(
    weights: dict[str, Tensor], first_new_id: int, source_ids: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """The weights with rows from `first` on for new tokens, number n the mean of the old rows `origins[n]`.

    A table that is padded beyond its old tokens gives its padding first, and is as long as before if that is enough.
    """
    return {
        name: _append_rows(tensor, first_new_id, source_ids) if name in VOCAB_TABLES else tensor
        for name, tensor in weights.items()
    }


def _append_rows(table: Tensor, first_new_id: int, source_ids: Sequence[Sequence[int]]) -> Tensor:
    new = torch.stack([table[list(ids)].mean(0) for ids in source_ids])
    return torch.cat([table[:first_new_id], new, table[first_new_id + len(new) :]])
