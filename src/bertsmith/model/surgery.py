"""Model surgery: reuse trained weights under another mixer, with more positions, a larger vocabulary, or fewer heads.

Longformer from BERT copies the query, key and value matrices into the global ones and tiles position embeddings
(Beltagy et al. 2020, section 5).
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from ..config import to_dict, to_kebab_case
from ..errors import UserError
from .config import EncoderConfig
from .mixers import Attention, Longformer, MixerConfig
from .model import Model
from .transformer import Stack

QKV_PREFIX, GLOBAL_QKV_PREFIX, POSITION_EMBEDDINGS = "projections.qkv.", "global_qkv.", "encoder.position_embeddings.weight"
VOCAB_TENSORS = (  # one row for each token
    "encoder.word_embeddings.weight",
    "heads.lm.bias",
    "heads.lm.output_embeddings.weight",
)
MIXER_WEIGHT = re.compile(r"encoder\.stack\.layers\.(\d+)\.mixer\.")
INHERITED_FIELDS = (
    "num_attention_heads", "bias", "rope_theta", "causal", "directions", "position_bias", "dynamic", "num_filters",
    "attention_head_size", "hidden_act",
)  # fmt: skip
"""Mixer fields that determine what the weights compute: taken over from the trained mixer."""


def replace_mixer(encoder: EncoderConfig, mixer: MixerConfig) -> EncoderConfig:
    """The encoder config with another mixer of the same weights; raises a UserError if names or shapes of weights differ.

    `INHERITED_FIELDS` are taken over from the trained mixer; requesting another value for one of them is an error.
    """
    trained = encoder.mixer
    if isinstance(trained, Attention) and trained.position_bias is not None and isinstance(mixer, Longformer):
        raise UserError(
            f"mixer=longformer does not support mixer.position_bias={_kind_of(trained.position_bias)}, which this model "
            "uses; keep mixer=attention, or train a model with position embeddings or mixer.rope_theta"
        )
    new = msgspec.structs.replace(encoder, mixer=_inherit_fields(mixer, trained))
    old_shapes, new_shapes = _weight_shapes(encoder), _weight_shapes(new)
    missing, unused = new_shapes.keys() - old_shapes.keys(), old_shapes.keys() - new_shapes.keys()
    reshaped = {name for name in new_shapes.keys() & old_shapes.keys() if new_shapes[name] != old_shapes[name]}
    if missing or unused or reshaped:
        raise UserError(f"mixer={_kind_of(mixer)} cannot take over the weights of mixer={_kind_of(trained)}: "
                       f"{_mismatch_message(missing, unused, reshaped)}; train a new model")  # fmt: skip
    _check_inherited_fields(mixer, new.mixer)
    return new


def merge_mixer_config(requested: MixerConfig, trained: MixerConfig) -> MixerConfig:
    """The trained mixer config, updated with the fields of `requested` that are not at their default.

    `requested` is returned as it is if it is of another kind.
    """
    if type(requested) is not type(trained):
        return requested
    defaults = type(requested)()
    return msgspec.structs.replace(trained, **{
        name: value for name in requested.__struct_fields__ if (value := getattr(requested, name)) != getattr(defaults, name)
    })  # fmt: skip


def convert_weights(weights: dict[str, Tensor], encoder: EncoderConfig) -> dict[str, Tensor]:
    """State dict for this encoder: global attention starts from the local QKV weights, position embeddings are tiled."""
    converted = {}
    for name, tensor in weights.items():
        match = MIXER_WEIGHT.match(name)
        has_global, suffix = match and _has_global_attention(encoder, int(match[1])), name[match.end() :] if match else ""
        if has_global or not suffix.startswith(GLOBAL_QKV_PREFIX):
            converted[name] = tensor
        if (
            match
            and has_global
            and suffix.startswith(QKV_PREFIX)
            and (global_name := match[0] + suffix.replace(QKV_PREFIX, GLOBAL_QKV_PREFIX)) not in weights
        ):
            converted[global_name] = tensor.clone()
    if POSITION_EMBEDDINGS in converted:
        converted[POSITION_EMBEDDINGS] = tile_positions(converted[POSITION_EMBEDDINGS], encoder.max_position_embeddings)
    return converted


def drop_heads(model: Model, names: Collection[str]) -> Model:
    """A copy of the model without these heads."""
    heads = {name: head for name, head in model.config.heads.items() if name not in names}
    smaller, weights = Model(msgspec.structs.replace(model.config, heads=heads), init_weights=False), model.state_dict()
    smaller.load_state_dict({name: weights[name] for name in smaller.state_dict()})
    return smaller.eval()


def tile_positions(table: Tensor, num_positions: int) -> Tensor:
    """(num_positions, dim): the trained rows repeated in order (Longformer), which keeps distances except at the seams."""
    return table[torch.arange(num_positions) % len(table)] if num_positions > len(table) else table[:num_positions].clone()


def extend_positions(encoder: EncoderConfig, num_positions: int) -> EncoderConfig:
    """The encoder config with more positions."""
    if num_positions < encoder.max_position_embeddings:
        raise UserError(
            f"max_length={num_positions:,} is less than the model's {encoder.max_position_embeddings:,} positions, "
            f"and cannot be lowered; set {encoder.max_position_embeddings} or more"
        )
    return msgspec.structs.replace(encoder, max_position_embeddings=num_positions)


def _inherit_fields(mixer: Any, trained: Any) -> Any:
    """`mixer` with the INHERITED_FIELDS of the trained mixer."""
    fallbacks = {"num_attention_heads": 1}  # if the trained mixer has no heads: any value, the shape check reports the rest
    inherited = {
        name: getattr(trained, name, fallbacks.get(name, getattr(type(mixer)(), name)))
        for name in INHERITED_FIELDS
        if _has_field(mixer, name)
    }
    return msgspec.structs.replace(mixer, **inherited)


def _check_inherited_fields(requested: Any, inherited: Any) -> None:
    defaults = type(requested)()
    for name in filter(lambda name: _has_field(requested, name), INHERITED_FIELDS):
        requested_value, inherited_value = getattr(requested, name), getattr(inherited, name)
        if requested_value not in (inherited_value, getattr(defaults, name)):
            raise UserError(
                f"mixer.{name} = {_format_value(requested_value)} is not what the weights were trained with, "
                f"{_format_value(inherited_value)}; leave it out"
            )


def _has_global_attention(encoder: EncoderConfig, block: int) -> bool:
    mixer = encoder.for_layer(block, encoder.num_hidden_groups or encoder.num_hidden_layers).mixer
    return isinstance(mixer, Longformer) and mixer.global_attention


def _weight_shapes(encoder: EncoderConfig) -> dict[str, torch.Size]:
    """Shapes of the stack's weights by name, without global QKV, which `convert_weights` adds or removes."""
    with torch.device("meta"):
        weights = Stack(encoder).state_dict().items()
    return {name: tensor.shape for name, tensor in weights if f".mixer.{GLOBAL_QKV_PREFIX}" not in name}


def _mismatch_message(missing: set[str], unused: set[str], reshaped: set[str]) -> str:
    groups = {"it needs": missing, "it does not use": unused, "shapes differ for": reshaped}
    names_by_reason = {reason: sorted({name.split(".mixer.")[-1] for name in names})[:4] for reason, names in groups.items()}
    return ", ".join(f"{reason} {', '.join(names)}" for reason, names in names_by_reason.items() if names)


def _format_value(value: Any) -> str:
    """A field's value as a recipe writes it."""
    return json.dumps(to_dict(value)) if isinstance(value, msgspec.Struct) else str(value)


def _has_field(mixer: Any, name: str) -> bool:
    return name in mixer.__struct_fields__


def _kind_of(mixer: Any) -> str:
    return str(mixer.__struct_config__.tag or to_kebab_case(type(mixer).__name__))


def resize_token_embeddings(
    weights: dict[str, Tensor], first_new_id: int, source_ids: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """State dict with rows `first_new_id + n` for new tokens, each the mean of the old rows `source_ids[n]`.

    New rows first replace the padding rows of a table that has more rows than tokens; only then does it grow.
    """
    return {
        name: _append_rows(tensor, first_new_id, source_ids) if name in VOCAB_TENSORS else tensor
        for name, tensor in weights.items()
    }


def _append_rows(table: Tensor, first_new_id: int, source_ids: Sequence[Sequence[int]]) -> Tensor:
    new_rows = torch.stack([table[list(ids)].mean(0) for ids in source_ids])
    return torch.cat([table[:first_new_id], new_rows, table[first_new_id + len(new_rows) :]])
