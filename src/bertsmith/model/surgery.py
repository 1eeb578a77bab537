"""Another mixer, or a longer table of positions, for a model that has been trained: what of its weights still serves."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from ..config import kebab
from ..errors import BadInput
from .config import EncoderConfig
from .mixers import Dense, MixerConfig, Window
from .transformer import Stack

QKV, ANCHORED, POSITIONS = "project.qkv.", "anchored.", "encoder.positions.weight"
OF_A_MIXER = re.compile(r"encoder\.stack\.blocks\.(\d+)\.mixer\.")
KEPT = ("heads", "bias", "rotary", "causal", "distance", "dynamic", "filters", "size", "activation")
"""With others the same weights would mean something else."""


def swapped(encoder: EncoderConfig, mixer: MixerConfig) -> EncoderConfig:
    """The same encoder with another mixer; refused where that has weights that the trained one lacks, or has no use for some.

    What decides the meaning of the weights (heads, direction and the like) stays; only what is said otherwise is refused.
    """
    old = encoder.mixer
    if isinstance(old, Dense) and old.distance is not None and isinstance(mixer, Window):
        raise BadInput(f"mixer=window knows nothing of mixer.distance={_word(old.distance)}, by which this model tells places "
                       "apart; stay with mixer=dense, or train one with a table of positions or mixer.rotary")  # fmt: skip
    new = msgspec.structs.replace(encoder, mixer=_agreeing(mixer, old))
    had, wants = _weights(encoder), _weights(new)
    lacking, spare = wants.keys() - had.keys(), had.keys() - wants.keys()
    other = {name for name in wants.keys() & had.keys() if wants[name] != had[name]}
    if lacking or spare or other:
        raise BadInput(f"mixer={_word(mixer)} cannot take over the weights of mixer={_word(old)}: "
                       f"{_why(lacking, spare, other)}; train one from the beginning")  # fmt: skip
    _unsaid(mixer, new.mixer)
    return new


def going_on(said: MixerConfig, old: MixerConfig) -> MixerConfig:
    """What is said of a mixer of the same kind, where all that is not said stays as it was trained; what is usual counts as
    not said. Of another kind there is nothing to go on with."""
    if type(said) is not type(old):
        return said
    usual = type(said)()
    return msgspec.structs.replace(old, **{
        name: value for name in said.__struct_fields__ if (value := getattr(said, name)) != getattr(usual, name)
    })  # fmt: skip


def adopted(weights: dict[str, Tensor], encoder: EncoderConfig) -> dict[str, Tensor]:
    """A model's weights for this encoder: anchors begin with the matrices of all tokens, positions are tiled to its length."""
    out = {}
    for name, tensor in weights.items():
        found = OF_A_MIXER.match(name)
        anchored, part = found and _anchored(encoder, int(found[1])), name[found.end() :] if found else ""
        if anchored or not part.startswith(ANCHORED):
            out[name] = tensor
        if found and anchored and part.startswith(QKV) and (copy := found[0] + part.replace(QKV, ANCHORED)) not in weights:
            out[copy] = tensor.clone()
    if POSITIONS in out:
        out[POSITIONS] = tiled(out[POSITIONS], encoder.positions)
    return out


def tiled(table: Tensor, length: int) -> Tensor:
    """As many rows as asked for, those there are again and again: what is near keeps its distance but at the seams."""
    return table[torch.arange(length) % len(table)] if length > len(table) else table[:length].clone()


def lengthened(encoder: EncoderConfig, length: int) -> EncoderConfig:
    if length < encoder.positions:
        raise BadInput(f"length {length:,} is less than the model's {encoder.positions:,} positions, which it need not lose; "
                       f"take {encoder.positions} or more")  # fmt: skip
    return msgspec.structs.replace(encoder, positions=length)


def _agreeing(mixer: Any, old: Any) -> Any:
    """It, with what decides the meaning of the weights as it was trained."""
    usual = {"heads": 1}  # of a mixer that has none: any serves to tell what else it lacks
    return msgspec.structs.replace(mixer, **{
        name: getattr(old, name, usual.get(name, getattr(type(mixer)(), name))) for name in KEPT if _has(mixer, name)
    })  # fmt: skip


def _unsaid(said: Any, kept: Any) -> None:
    usual = type(said)()
    for name in filter(lambda name: _has(said, name), KEPT):
        asked, is_ = getattr(said, name), getattr(kept, name)
        if asked not in (is_, getattr(usual, name)):
            raise BadInput(f"mixer.{name} = {asked} is not what the weights were trained with, {is_}; leave it out")


def _anchored(encoder: EncoderConfig, block: int) -> bool:
    mixer = encoder.at(block, encoder.groups or encoder.layers).mixer
    return isinstance(mixer, Window) and mixer.anchors


def _weights(encoder: EncoderConfig) -> dict[str, torch.Size]:
    """The shapes of all blocks' but for anchors', which come and go, by name."""
    with torch.device("meta"):
        found = Stack(encoder).state_dict().items()
    return {name: tensor.shape for name, tensor in found if f".mixer.{ANCHORED}" not in name}


def _why(lacking: set[str], spare: set[str], other: set[str]) -> str:
    told = {"it needs": lacking, "it has no use for": spare, "other shapes has": other}
    parts = {what: sorted({name.split(".mixer.")[-1] for name in names})[:4] for what, names in told.items()}
    return ", ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)


def _has(mixer: Any, name: str) -> bool:
    return name in mixer.__struct_fields__


def _word(mixer: Any) -> str:
    return str(mixer.__struct_config__.tag or kebab(type(mixer).__name__))


TABLES = ("encoder.tokens.weight", "heads.words.bias", "heads.words.table.weight")  # a row, or a number, for every token


def grown(weights: dict[str, Tensor], first: int, origins: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The weights with rows from `first` on for new tokens, number n the mean of the old rows `origins[n]`.

    A table that is padded beyond its old tokens gives its padding first, and is as long as before if that is enough.
    """
    return {name: _longer(tensor, first, origins) if name in TABLES else tensor for name, tensor in weights.items()}


def _longer(table: Tensor, first: int, origins: Sequence[Sequence[int]]) -> Tensor:
    new = torch.stack([table[list(ids)].mean(0) for ids in origins])
    return torch.cat([table[:first], new, table[first + len(new) :]])
