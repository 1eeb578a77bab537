"""Their tensors into our model, strictly, and ours into theirs: nothing is lost without being named."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ...model.config import EncoderConfig
from ...model.heads import HeadConfig, LabelHead, ReplacedHead, WordHead
from ...model.model import Model, ModelConfig
from ...tasks import TaskConfig
from .config import heard, ours, skipped
from .names import BERT, MAPPING, NARROW_BERT, Family, Form
from .tasks import head_of, task_of
from .weights import Places, normal, places, present

POSITIONS = "encoder.positions.weight"
POOLER = ("encoder.pooler.weight", "encoder.pooler.bias")
SEGMENTS = "encoder.segments.weight"


@dataclass(frozen=True)
class Fitted:
    """A model made of theirs, and what did not go into it."""

    model: Model
    task: TaskConfig | None  # what its head `task` answers
    unmatched: list[str]  # of heads that this model does not have
    initialised: list[str]  # ours that theirs did not hold
    rest: dict[str, Tensor] = field(default_factory=dict)  # no part of the model; kept for the way back


def fitted(family: Family, config: dict[str, Any], tensors: dict[str, Tensor], source: str) -> Fitted:
    """Their tensors as our model; a name of the encoder that finds no place is refused, others are listed."""
    tensors = _untied(family, _named(family, tensors, source), source)
    if family is BERT and f"{BERT.prefix}{MAPPING}.weight" in tensors:
        family = NARROW_BERT
    encoder = ours(family, config, source)
    form, task = _form(family, config, tensors, source)
    heard(family, encoder, form.heads, source)
    _same_depth(family, encoder, tensors, source)
    pooler = _pooler(family, form, tensors)
    where = places(family, form, encoder.groups or encoder.layers, pooler, encoder.embedding is not None)
    used = {name for names in where.values() for name in names}
    _nothing_missing(used - tensors.keys(), source)
    unmatched = _unmatched(family, tensors.keys() - used, source)
    heads = _heads(family, form, config, tensors)
    model = _empty(ModelConfig(encoder=encoder, vocabulary=_words(config, source), heads=heads), source)
    real = {name: _real(name, tensors[name], source) for names in where.values() for name in names}
    weights = {mine: torch.cat([_turned(family, mine, real[name]) for name in names]) for mine, names in where.items()}
    rest = _cut(family, config, weights, source)
    initialised = [name for name in POOLER if name not in where and encoder.pooler != "none"]
    weights |= _filled(encoder, where)
    _same_shapes(model, weights, where, source)
    model.load_state_dict(weights, assign=True)
    return Fitted(model.eval(), task, unmatched, initialised, rest)


def unfitted(family: Family, form: Form, model: Model, skip: int, rest: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our model as transformers' class holds it, under its names."""
    weights, encoder = dict(model.state_dict()), model.config.encoder
    if skip:
        before = rest.get(POSITIONS, weights[POSITIONS].new_zeros(skip, weights[POSITIONS].shape[1]))
        weights[POSITIONS] = torch.cat([before, weights[POSITIONS]])
    where = places(family, form, encoder.groups or encoder.layers, form.pooler, encoder.embedding is not None)
    if lost := sorted(weights.keys() - where.keys() - {*POOLER, SEGMENTS}):
        raise BadInput(f"Hugging Face's {form.name} has no place for {_listed(lost)}")
    prefix = family.prefix if not form.heads else ""
    parts = {mine: weights[mine].chunk(len(names)) for mine, names in where.items()}
    return {
        name.removeprefix(prefix): _turned(family, mine, part).contiguous().clone()
        for mine, names in where.items()
        for name, part in zip(names, parts[mine], strict=True)
    }


def _turned(family: Family, mine: str, tensor: Tensor) -> Tensor:
    """The matrices of blocks stand the other way round in GPT's files, which were written for products from the left."""
    across = family.across and mine.startswith("encoder.stack.blocks.") and tensor.ndim == 2
    return tensor.T.contiguous() if across else tensor


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


def _form(family: Family, config: dict[str, Any], tensors: dict[str, Tensor], source: str) -> tuple[Form, TaskConfig | None]:
    """A task's class by the name in config.json, where ours can say it; else whatever heads of pre-training are there."""
    names = config.get("architectures")
    form = next((form for form in family.forms if form.shape and [form.name] == names), None)
    if form:
        score = tensors.get(f"{form.score}.weight")
        if score is None:
            raise BadInput(f"{source} holds no {form.score}.weight, though its config.json says that it is a {form.name}; "
                           "correct `architectures` there")  # fmt: skip
        if task := task_of(form, config, len(score), source):
            return form, task
    if family.bare:
        headless = names == [family.forms[0].name]  # files do not tell: the head has no weights of its own
        return family.forms[0 if headless else 1], None
    heads = tuple(sorted(head for head in family.heads if present(family, head, tensors)))
    return Form("", heads, family.pooler), None


def _pooler(family: Family, form: Form, tensors: Iterable[str]) -> str | None:
    """The module that is the pooler: of a head that cannot do without, wherever it is; else the encoder's, if there."""
    if form.shape in ("text", "choice") or "next" in form.heads:
        return form.pooler
    return family.pooler if family.pooler and f"{family.pooler}.weight" in tensors else None


def _unmatched(family: Family, names: Iterable[str], source: str) -> list[str]:
    """Names without a place: not of the encoder, but for a pooler that the head has its own instead of."""
    names, spare = sorted(names), (f"{family.pooler}.weight", f"{family.pooler}.bias")
    if inside := [name for name in names if name.startswith(family.prefix) and name not in spare]:
        raise BadInput(f"{source} holds parts of an encoder that this model has no place for: {_listed(inside)}")
    return names


def _same_depth(family: Family, encoder: EncoderConfig, tensors: Iterable[str], source: str) -> None:
    """Asked before the model is built: a wrong number of blocks could be any."""
    start, wanted = family.prefix + family.block.split("{}")[0], encoder.groups or encoder.layers
    found = len({name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)})
    if found != wanted:
        key = family.sizes["layers"] if encoder.groups is None else family.sizes["groups"]
        raise BadInput(f"{source} holds {found:,} blocks, but its config.json says {key} = {wanted:,}")


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


def _heads(family: Family, form: Form, config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, HeadConfig]:
    known: dict[str, HeadConfig] = {}
    for head in form.heads:
        if head == "task":
            known[head] = head_of(family, form, config, len(tensors[f"{form.score}.weight"]))
        elif head == "next":
            known[head] = LabelHead(labels=len(tensors[f"{family.heads[head]['score']}.weight"]))
        else:
            known[head] = word_head(family) if head == "words" else ReplacedHead()
    return known


def word_head(family: Family) -> WordHead:
    return WordHead(transform=False, bias=False) if family.bare else WordHead()


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


def _filled(encoder: EncoderConfig, where: Places) -> dict[str, Tensor]:
    """A new pooler where there is none, and zeros for a family without segments: adding them changes nothing."""
    out: dict[str, Tensor] = {}
    if SEGMENTS not in where and encoder.segments:
        out[SEGMENTS] = torch.zeros(encoder.segments, encoder.embedded)
    if POOLER[0] not in where and encoder.pooler != "none":
        weight, limit = torch.empty(encoder.width, encoder.width), 2 * encoder.deviation
        stream = torch.Generator().manual_seed(0)
        out[POOLER[0]] = nn.init.trunc_normal_(weight, std=encoder.deviation, a=-limit, b=limit, generator=stream)
        out[POOLER[1]] = torch.zeros(encoder.width)
    return out


def _same_shapes(model: Model, weights: dict[str, Tensor], where: Places, source: str) -> None:
    for name, wanted in model.state_dict().items():
        if weights[name].shape != wanted.shape:
            told = " + ".join(where.get(name, (name,)))
            raise BadInput(
                f"{source}: {told} is {list(weights[name].shape)}, where its config.json promises {list(wanted.shape)}"
            )


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
