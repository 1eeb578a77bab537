"""Their tensors into our model, strictly, and ours into theirs: nothing is lost without being named."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...model.config import EncoderConfig
from ...model.heads import DiscriminatorHeadConfig, HeadConfig, LMHeadConfig, PooledHeadConfig
from ...model.model import Model, ModelConfig
from ...tasks import TaskConfig
from .config import check_head_activation, config_from_hf, get_position_offset
from .names import BERT, EMBEDDING_PROJECTION, NARROW_BERT, Architecture, Family
from .tasks import head_from_hf, task_from_hf
from .weights import NameMap, build_name_map, has_head, normalize_name

POSITION_EMBEDDINGS = "encoder.positions.weight"
POOLER_TENSORS = ("encoder.pooler.weight", "encoder.pooler.bias")
SEGMENT_EMBEDDINGS = "encoder.segments.weight"


@dataclass(frozen=True)
class ConvertedModel:
    """A model made of theirs, and what did not go into it."""

    model: Model
    task: TaskConfig | None  # what its head `task` answers
    unexpected_keys: list[str]  # of heads that this model does not have
    missing_keys: list[str]  # ours that theirs did not hold
    extra_tensors: dict[str, Tensor] = field(default_factory=dict)  # no part of the model; kept for the way back


def convert_from_hf(family: Family, config: dict[str, Any], tensors: dict[str, Tensor], source: str) -> ConvertedModel:
    """Their tensors as our model; a name of the encoder that finds no place is refused, others are listed."""
    tensors = _drop_tied_copies(family, _normalize_names(family, tensors, source), source)
    if family is BERT and f"{BERT.prefix}{EMBEDDING_PROJECTION}.weight" in tensors:
        family = NARROW_BERT
    encoder = config_from_hf(family, config, source)
    form, task = _detect_architecture(family, config, tensors, source)
    check_head_activation(family, encoder, form.heads, source)
    _check_num_blocks(family, encoder, tensors, source)
    pooler = _find_pooler(family, form, tensors)
    where = build_name_map(family, form, encoder.groups or encoder.layers, pooler, encoder.embedding is not None)
    used = {name for names in where.values() for name in names}
    _check_nothing_missing(used - tensors.keys(), source)
    unmatched = _find_unexpected_keys(family, tensors.keys() - used, source)
    heads = _build_head_configs(family, form, config, tensors)
    model = _build_on_meta(ModelConfig(encoder=encoder, vocabulary=_read_vocab_size(config, source), heads=heads), source)
    real = {name: _to_float32(name, tensors[name], source) for names in where.values() for name in names}
    weights = {
        mine: torch.cat([_transpose_if_needed(family, mine, real[name]) for name in names]) for mine, names in where.items()
    }
    rest = _split_position_rows(family, config, weights, source)
    initialised = [name for name in POOLER_TENSORS if name not in where and encoder.pooler != "none"]
    weights |= _init_missing_weights(encoder, where)
    _check_shapes(model, weights, where, source)
    model.load_state_dict(weights, assign=True)
    return ConvertedModel(model.eval(), task, unmatched, initialised, rest)


def convert_to_hf(
    family: Family, architecture: Architecture, model: Model, position_offset: int, extra_tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Our model as transformers' class holds it, under its names."""
    weights, encoder = dict(model.state_dict()), model.config.encoder
    if position_offset:
        before = extra_tensors.get(
            POSITION_EMBEDDINGS, weights[POSITION_EMBEDDINGS].new_zeros(position_offset, weights[POSITION_EMBEDDINGS].shape[1])
        )
        weights[POSITION_EMBEDDINGS] = torch.cat([before, weights[POSITION_EMBEDDINGS]])
    where = build_name_map(
        family, architecture, encoder.groups or encoder.layers, architecture.pooler_module, encoder.embedding is not None
    )
    if lost := sorted(weights.keys() - where.keys() - {*POOLER_TENSORS, SEGMENT_EMBEDDINGS}):
        raise UserError(f"Hugging Face's {architecture.name} has no place for {_format_names(lost)}")
    prefix = family.prefix if not architecture.heads else ""
    parts = {mine: weights[mine].chunk(len(names)) for mine, names in where.items()}
    return {
        name.removeprefix(prefix): _transpose_if_needed(family, mine, part).contiguous().clone()
        for mine, names in where.items()
        for name, part in zip(names, parts[mine], strict=True)
    }


def _transpose_if_needed(family: Family, our_name: str, tensor: Tensor) -> Tensor:
    """The matrices of blocks stand the other way round in GPT's files, which were written for products from the left."""
    across = family.transposed_weights and our_name.startswith("encoder.stack.blocks.") and tensor.ndim == 2
    return tensor.T.contiguous() if across else tensor


def _normalize_names(family: Family, tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        if (name := normalize_name(family, old)) is None:
            continue
        if name in out:
            raise UserError(f"{source} holds {name} twice, once as {old}; remove one of them")
        out[name] = tensor
    return out


def _drop_tied_copies(family: Family, tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Without the copies of tied tensors; copies that say something else are refused."""
    tensors = dict(tensors)
    for copy, original in family.tied_weights.items():
        if copy not in tensors:
            continue
        tensor = tensors.pop(copy)
        if not torch.equal(tensors.setdefault(original, tensor), tensor):
            raise UserError(f"{source}: {copy} is not {original}, but a table of its own; this model has one for both")
    return tensors


def _detect_architecture(
    family: Family, config: dict[str, Any], tensors: dict[str, Tensor], source: str
) -> tuple[Architecture, TaskConfig | None]:
    """A task's class by the name in config.json, where ours can say it; else whatever heads of pre-training are there."""
    names = config.get("architectures")
    form = next((form for form in family.architectures if form.head_type and [form.name] == names), None)
    if form:
        score = tensors.get(f"{form.score_module}.weight")
        if score is None:
            raise UserError(f"{source} holds no {form.score_module}.weight, though its config.json says that it is a {form.name}; "
                           "correct `architectures` there")  # fmt: skip
        if task := task_from_hf(form, config, len(score), source):
            return form, task
    if family.bare_lm_head:
        headless = names == [family.architectures[0].name]  # files do not tell: the head has no weights of its own
        return family.architectures[0 if headless else 1], None
    heads = tuple(sorted(head for head in family.head_modules if has_head(family, head, tensors)))
    return Architecture("", heads, family.pooler_module), None


def _find_pooler(family: Family, architecture: Architecture, tensors: Iterable[str]) -> str | None:
    """The module that is the pooler: of a head that cannot do without, wherever it is; else the encoder's, if there."""
    if architecture.head_type in ("text", "choice") or "next" in architecture.heads:
        return architecture.pooler_module
    return family.pooler_module if family.pooler_module and f"{family.pooler_module}.weight" in tensors else None


def _find_unexpected_keys(family: Family, names: Iterable[str], source: str) -> list[str]:
    """Names without a place: not of the encoder, but for a pooler that the head has its own instead of."""
    names, spare = sorted(names), (f"{family.pooler_module}.weight", f"{family.pooler_module}.bias")
    if inside := [name for name in names if name.startswith(family.prefix) and name not in spare]:
        raise UserError(f"{source} holds parts of an encoder that this model has no place for: {_format_names(inside)}")
    return names


def _check_num_blocks(family: Family, encoder: EncoderConfig, tensors: Iterable[str], source: str) -> None:
    """Asked before the model is built: a wrong number of blocks could be any."""
    start, wanted = family.prefix + family.block_prefix.split("{}")[0], encoder.groups or encoder.layers
    found = len({name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)})
    if found != wanted:
        key = family.config_keys["layers"] if encoder.groups is None else family.config_keys["groups"]
        raise UserError(f"{source} holds {found:,} blocks, but its config.json says {key} = {wanted:,}")


def _build_on_meta(config: ModelConfig, source: str) -> Model:
    """Without memory for its weights: theirs take their place."""
    try:
        with torch.device("meta"):
            return Model(config)
    except RuntimeError as error:  # sizes beyond all numbers
        raise UserError(f"{source}: the model its config.json describes cannot be built: {error}") from None


def _read_vocab_size(config: dict[str, Any], source: str) -> int:
    size = config.get("vocab_size")
    if not isinstance(size, int) or not 0 < size < 1 << 31:
        raise UserError(f"{source}: config.json has vocab_size = {size!r}, not a number of words")
    return size


def _build_head_configs(
    family: Family, architecture: Architecture, config: dict[str, Any], tensors: dict[str, Tensor]
) -> dict[str, HeadConfig]:
    known: dict[str, HeadConfig] = {}
    for head in architecture.heads:
        if head == "task":
            known[head] = head_from_hf(family, architecture, config, len(tensors[f"{architecture.score_module}.weight"]))
        elif head == "next":
            known[head] = PooledHeadConfig(labels=len(tensors[f"{family.head_modules[head]['score']}.weight"]))
        else:
            known[head] = mlm_head_config(family) if head == "words" else DiscriminatorHeadConfig()
    return known


def mlm_head_config(family: Family) -> LMHeadConfig:
    return LMHeadConfig(transform=False, bias=False) if family.bare_lm_head else LMHeadConfig()


def _check_nothing_missing(names: Iterable[str], source: str) -> None:
    if names := sorted(names):
        raise UserError(f"{source} lacks what its config.json promises: {_format_names(names)}")


def _to_float32(name: str, tensor: Tensor, source: str) -> Tensor:
    if not tensor.is_floating_point():
        raise UserError(f"{source}: {name} holds {tensor.dtype}, not real numbers; a quantised model cannot be read")
    return tensor.to(torch.float32)


def _split_position_rows(family: Family, config: dict[str, Any], weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Takes the rows before position 0 out of the table, and gives them."""
    skip = get_position_offset(family, config, source)
    if not skip:
        return {}
    table = weights[POSITION_EMBEDDINGS]
    weights[POSITION_EMBEDDINGS] = table[skip:].contiguous()
    return {POSITION_EMBEDDINGS: table[:skip].clone()}


def _init_missing_weights(encoder: EncoderConfig, name_map: NameMap) -> dict[str, Tensor]:
    """A new pooler where there is none, and zeros for a family without segments: adding them changes nothing."""
    out: dict[str, Tensor] = {}
    if SEGMENT_EMBEDDINGS not in name_map and encoder.segments:
        out[SEGMENT_EMBEDDINGS] = torch.zeros(encoder.segments, encoder.embedding_dim)
    if POOLER_TENSORS[0] not in name_map and encoder.pooler != "none":
        weight, limit = torch.empty(encoder.width, encoder.width), 2 * encoder.deviation
        stream = torch.Generator().manual_seed(0)
        out[POOLER_TENSORS[0]] = nn.init.trunc_normal_(weight, std=encoder.deviation, a=-limit, b=limit, generator=stream)
        out[POOLER_TENSORS[1]] = torch.zeros(encoder.width)
    return out


def _check_shapes(model: Model, weights: dict[str, Tensor], name_map: NameMap, source: str) -> None:
    for name, wanted in model.state_dict().items():
        if weights[name].shape != wanted.shape:
            told = " + ".join(name_map.get(name, (name,)))
            raise UserError(
                f"{source}: {told} is {list(weights[name].shape)}, where its config.json promises {list(wanted.shape)}"
            )


def _format_names(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
