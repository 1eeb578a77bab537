"""Another mixer, or a longer table of positions, for a model that has been trained: what of its weights still serves."""

from typing import Any

import msgspec
import torch
from torch import Tensor

from ..config import kebab
from ..errors import BadInput
from .encoder import EncoderConfig
from .mixers import Dense, MixerConfig, Window

QKV, ANCHORED, POSITIONS = ".mixer.project.qkv.", ".mixer.anchored.", "encoder.positions.weight"
KEPT = ("heads", "bias", "rotary", "causal")  # of attention: with others the weights would mean something else


def swapped(encoder: EncoderConfig, mixer: MixerConfig) -> EncoderConfig:
    """The same encoder with another mixer; refused where that has weights that the trained one lacks, or has no use for some.

    What decides the meaning of the weights (heads, bias, rotary, causal) stays; only what is said otherwise is refused.
    """
    old = encoder.mixer
    if isinstance(old, Dense) and old.distance is not None and isinstance(mixer, Window):
        raise BadInput(
            f"mixer=window knows nothing of mixer.distance={_word(old.distance)}, by which this model tells places apart"
        )
    if isinstance(old, Dense | Window) and isinstance(mixer, Dense | Window):
        _unsaid(old, mixer)
        mixer = msgspec.structs.replace(mixer, **{name: getattr(old, name) for name in KEPT})
    had, wants = (_weights(one, encoder) for one in (old, mixer))
    lacking = [name for name in wants.keys() - had.keys() if not name.startswith("anchored.")]
    spare = [name for name in had.keys() - wants.keys() if not name.startswith("anchored.")]
    other = [name for name in wants.keys() & had.keys() if wants[name] != had[name]]
    if lacking or spare or other:
        raise BadInput(f"mixer={_word(mixer)} cannot take over the weights of mixer={_word(old)}: "
                       f"{_why(lacking, spare, other)}; train one from the beginning")  # fmt: skip
    return msgspec.structs.replace(encoder, mixer=mixer)


def adopted(weights: dict[str, Tensor], encoder: EncoderConfig) -> dict[str, Tensor]:
    """A model's weights for this encoder: anchors begin with the matrices of all tokens, positions are tiled to its length."""
    anchored = isinstance(encoder.mixer, Window) and encoder.mixer.anchors
    out = {name: tensor for name, tensor in weights.items() if anchored or ANCHORED not in name}
    for name, tensor in weights.items():
        if anchored and QKV in name:
            out.setdefault(name.replace(QKV, ANCHORED), tensor.clone())
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


def _unsaid(old: Dense | Window, new: Dense | Window) -> None:
    usual = type(new)()
    for name in KEPT:
        said, is_ = getattr(new, name), getattr(old, name)
        if said not in (is_, getattr(usual, name)):
            raise BadInput(f"mixer.{name} = {said} is not what the weights were trained with, {is_}; leave it out")


def _weights(mixer: MixerConfig, encoder: EncoderConfig) -> dict[str, torch.Size]:
    """The shapes of the first block's, by name."""
    config = msgspec.structs.replace(encoder, mixer=mixer).at(0, encoder.groups or encoder.layers)
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in config.mixer.build(encoder.width).state_dict().items()}


def _why(lacking: list[str], spare: list[str], other: list[str]) -> str:
    told = {"it needs": lacking, "it has no use for": spare, "other shapes has": other}
    return ", ".join(f"{what} {', '.join(sorted(names)[:4])}" for what, names in told.items() if names)


def _word(mixer: Any) -> str:
    return str(mixer.__struct_config__.tag or kebab(type(mixer).__name__))
