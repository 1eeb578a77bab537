"""Their tensors into our model, strictly, and ours into theirs: nothing is lost without being named."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput
from ..model.encoder import EncoderConfig
from ..model.heads import HeadConfig, LabelHead, WordHead
from ..model.model import Model, ModelConfig
from .configs import ours, skipped
from .names import Family, normal, places

POSITIONS = "encoder.positions.weight"
POOLER = ("encoder.pooler.weight", "encoder.pooler.bias")
SEGMENTS = "encoder.segments.weight"


@dataclass(frozen=True)
class Fitted:
    """A model made of theirs, and what did not go into it."""

    model: Model
    unmatched: list[str]  # of heads that this model does not have
    initialised: list[str]  # ours that theirs did not hold
    rest: dict[str, Tensor] = field(default_factory=dict)  # no part of the model; kept for the way back


def fitted(family: Family, config: dict[str, Any], tensors: dict[str, Tensor], source: str) -> Fitted:
    """Their tensors as our model; a name of the encoder that finds no place is refused, others are listed."""
    tensors = _untied(family, _named(family, tensors, source), source)
    encoder = ours(family, config, source)
    heads = tuple(head for head in family.heads if _has(family, head, tensors))
    pooler = "pooler" in family.layers and f"{family.prefix}{family.layers['pooler']}.weight" in tensors
    _same_depth(family, encoder, tensors, source)
    where = places(family, encoder.layers, heads, pooler)
    model = _empty(_config(family, encoder, heads, tensors, _words(config, source)), source)
    used = {name for names in where.values() for name in names}
    _nothing_missing(used - tensors.keys(), source)
    unmatched = sorted(tensors.keys() - used)
    if inside := [name for name in unmatched if name.startswith(family.prefix)]:
        raise BadInput(f"{source} holds parts of an encoder that this model has no place for: {_listed(inside)}")
    weights = {mine: torch.cat([_real(name, tensors[name], source) for name in names]) for mine, names in where.items()}
    rest = _cut(family, config, weights, source)
    initialised = [] if pooler else list(POOLER)
    weights |= _filled(encoder, where, pooler)
    _same_shapes(model, weights, where, source)
    model.load_state_dict(weights, assign=True)
    return Fitted(model.eval(), unmatched, initialised, rest)


def unfitted(family: Family, model: Model, architecture: str, skip: int, rest: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our model as transformers' class of that name holds it, under its names."""
    weights = dict(model.state_dict())
    if skip:
        before = rest.get(POSITIONS, weights[POSITIONS].new_zeros(skip, weights[POSITIONS].shape[1]))
        weights[POSITIONS] = torch.cat([before, weights[POSITIONS]])
    where = places(family, model.config.encoder.layers, tuple(model.config.heads), architecture in family.pooled)
    prefix = "" if model.config.heads else family.prefix
    parts = {mine: weights[mine].chunk(len(names)) for mine, names in where.items()}
    return {
        name.removeprefix(prefix): part.contiguous().clone()
        for mine, names in where.items()
        for name, part in zip(names, parts[mine], strict=True)
    }


def _named(family: Family, tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        if (name := normal(family, old)) is None:
            continue
        if name in out:
            raise BadInput(f"{source} holds {name} twice, once as {old}; remove one of them")
        out[name] = tensor
    return out


def _untied(family: Family, tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Without the copies of tied tensors; copies that say something else are refused."""
    tensors = dict(tensors)
    for copy, original in family.copies.items():
        if copy not in tensors:
            continue
        tensor = tensors.pop(copy)
        if not torch.equal(tensors.setdefault(original, tensor), tensor):
            raise BadInput(f"{source}: {copy} is not {original}, but a table of its own; this model has one for both")
    return tensors


def _has(family: Family, head: str, tensors: Iterable[str]) -> bool:
    own = tuple(f"{name}." for name in family.heads[head].values())
    return any(name.startswith(own) for name in tensors)


def _same_depth(family: Family, encoder: EncoderConfig, tensors: Iterable[str], source: str) -> None:
    """Asked before the model is built: a wrong number of layers could be any."""
    start = family.prefix + family.block
    found = len({name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)})
    if found != encoder.layers:
        raise BadInput(
            f"{source} holds {found:,} blocks, but its config.json says {family.sizes['layers']} = {encoder.layers:,}"
        )


def _empty(config: ModelConfig, source: str) -> Model:
    """Without memory for its weights: theirs take their place."""
    try:
        with torch.device("meta"):
            return Model(config)
    except RuntimeError as error:  # sizes beyond all numbers
        raise BadInput(f"{source}: the model its config.json describes cannot be built: {error}") from None


def _words(config: dict[str, Any], source: str) -> int:
    size = config.get("vocab_size")
    if not isinstance(size, int) or not 0 < size < 1 << 31:
        raise BadInput(f"{source}: config.json has vocab_size = {size!r}, not a number of words")
    return size


def _config(
    family: Family, encoder: EncoderConfig, heads: tuple[str, ...], tensors: dict[str, Tensor], words: int
) -> ModelConfig:
    known: dict[str, HeadConfig] = {}
    for head in heads:
        score = tensors.get(f"{family.heads[head].get('score')}.weight")
        known[head] = WordHead() if head == "words" else LabelHead(labels=2 if score is None else len(score))
    return ModelConfig(encoder=encoder, vocabulary=words, heads=known)


def _nothing_missing(names: Iterable[str], source: str) -> None:
    if names := sorted(names):
        raise BadInput(f"{source} lacks what its config.json promises: {_listed(names)}")


def _real(name: str, tensor: Tensor, source: str) -> Tensor:
    if not tensor.is_floating_point():
        raise BadInput(f"{source}: {name} holds {tensor.dtype}, not real numbers; a quantised model cannot be read")
    return tensor.to(torch.float32)


def _cut(family: Family, config: dict[str, Any], weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Takes the rows before position 0 out of the table, and gives them."""
    skip = skipped(family, config, source)
    if not skip:
        return {}
    table = weights[POSITIONS]
    weights[POSITIONS] = table[skip:].contiguous()
    return {POSITIONS: table[:skip].clone()}


def _filled(encoder: EncoderConfig, where: Iterable[str], pooler: bool) -> dict[str, Tensor]:
    """A new pooler where there is none, and zeros for a family without segments: adding them changes nothing."""
    out: dict[str, Tensor] = {}
    if SEGMENTS not in where:
        out[SEGMENTS] = torch.zeros(encoder.segments, encoder.width)
    if not pooler:
        weight, limit = torch.empty(encoder.width, encoder.width), 2 * encoder.deviation
        stream = torch.Generator().manual_seed(0)
        out[POOLER[0]] = nn.init.trunc_normal_(weight, std=encoder.deviation, a=-limit, b=limit, generator=stream)
        out[POOLER[1]] = torch.zeros(encoder.width)
    return out


def _same_shapes(model: Model, weights: dict[str, Tensor], where: dict[str, tuple[str, ...]], source: str) -> None:
    for name, wanted in model.state_dict().items():
        if weights[name].shape != wanted.shape:
            told = " + ".join(where.get(name, (name,)))
            raise BadInput(
                f"{source}: {told} is {list(weights[name].shape)}, where its config.json promises {list(wanted.shape)}"
            )


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
