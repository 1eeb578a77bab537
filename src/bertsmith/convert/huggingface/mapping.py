"""Strict conversion of state dicts between transformers and our models: every tensor is used, listed or an error."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...model.config import EncoderConfig
from ...model.heads import LM_HEAD, DiscriminatorHeadConfig, HeadConfig, LMHeadConfig, PooledHeadConfig
from ...model.model import Model, ModelConfig
from ...tasks import TaskConfig
from .config import check_head_activation, config_from_hf, get_position_offset
from .family import PAIR_HEADS, Architecture, Family
from .modernbert import is_classifier_bias, needs_classifier_bias
from .names import BERT, EMBEDDING_PROJECTION, NARROW_BERT
from .tasks import head_from_hf, task_from_hf
from .weights import NameMap, build_name_map, has_head, normalize_name

POSITION_EMBEDDINGS = "encoder.position_embeddings.weight"
POOLER_TENSORS = ("encoder.pooler.weight", "encoder.pooler.bias")
SEGMENT_EMBEDDINGS = "encoder.token_type_embeddings.weight"


@dataclass(frozen=True)
class ConvertedModel:
    """A converted model, and the tensors that were not converted."""

    model: Model
    task: TaskConfig | None  # of the head `task`
    unexpected_keys: list[str]  # tensors of heads that our model does not have
    missing_keys: list[str]  # our tensors that the source lacks, randomly initialized
    extra_tensors: dict[str, Tensor] = field(default_factory=dict)  # not used by our model; kept for export
    max_length: int | None = None  # tokens of a text, if the source limits them to less than the model's positions


def convert_from_hf(family: Family, config: dict[str, Any], tensors: dict[str, Tensor], source: str) -> ConvertedModel:
    """Convert a transformers state dict; an unknown encoder tensor is an error, unknown tensors of heads are listed."""
    tensors = _drop_tied_copies(family, _normalize_names(family, tensors, source), source)
    if family is BERT and f"{BERT.prefix}{EMBEDDING_PROJECTION}.weight" in tensors:
        family = NARROW_BERT
    encoder = config_from_hf(family, config, source)
    architecture, task = _detect_architecture(family, config, tensors, source)
    check_head_activation(family, encoder, architecture.heads, source)
    _check_num_blocks(family, encoder, tensors, source)
    pooler = _find_pooler(family, architecture, tensors)
    name_map = build_name_map(
        family, architecture, encoder.num_hidden_groups or encoder.num_hidden_layers, pooler, encoder.embedding_size is not None
    )
    heads = _build_head_configs(family, architecture, config, tensors, source)
    model = _build_on_meta(ModelConfig(encoder=encoder, vocab_size=_read_vocab_size(config, source), heads=heads), source)
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    has_no_bias = family.is_modernbert and not config.get("classifier_bias")
    name_map = {
        name: names for name, names in name_map.items() if name in shapes and not (has_no_bias and is_classifier_bias(name))
    }
    used = {name for names in name_map.values() for name in names}
    _check_nothing_missing(used - tensors.keys(), source)
    unexpected = _find_unexpected_keys(family, tensors.keys() - used, source)
    source_tensors = {name: _to_float32(name, tensors[name], source) for names in name_map.values() for name in names}
    weights = {
        our_name: torch.cat([_transpose_if_needed(family, our_name, source_tensors[name]) for name in names])
        for our_name, names in name_map.items()
    }
    extra_tensors = _split_position_rows(family, config, weights, source)
    missing = [name for name in POOLER_TENSORS if name not in name_map and encoder.pooler_act != "none"]
    weights |= _init_missing_weights(encoder, name_map)
    weights |= {name: torch.zeros(shapes[name]) for name in shapes.keys() - weights.keys() if is_classifier_bias(name)}
    _check_shapes(model, weights, name_map, source)
    model.load_state_dict(weights, assign=True)
    return ConvertedModel(model.eval(), task, unexpected, missing, extra_tensors)


def convert_to_hf(
    family: Family, architecture: Architecture, model: Model, position_offset: int, extra_tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """State dict of the transformers class for our model."""
    weights, encoder = dict(model.state_dict()), model.config.encoder
    if position_offset:
        offset_rows = extra_tensors.get(
            POSITION_EMBEDDINGS, weights[POSITION_EMBEDDINGS].new_zeros(position_offset, weights[POSITION_EMBEDDINGS].shape[1])
        )
        weights[POSITION_EMBEDDINGS] = torch.cat([offset_rows, weights[POSITION_EMBEDDINGS]])
    name_map = build_name_map(
        family,
        architecture,
        encoder.num_hidden_groups or encoder.num_hidden_layers,
        architecture.pooler_module,
        encoder.embedding_size is not None,
    )
    if family.is_modernbert and not needs_classifier_bias(weights):
        weights = {name: weight for name, weight in weights.items() if not is_classifier_bias(name)}
    name_map = {name: names for name, names in name_map.items() if name in weights} if family.is_modernbert else name_map
    if unmapped := sorted(weights.keys() - name_map.keys() - {*POOLER_TENSORS, SEGMENT_EMBEDDINGS}):
        raise UserError(f"transformers' {architecture.name} has no parameters for {_format_names(unmapped)}")
    prefix = family.prefix if not architecture.heads else ""
    parts = {our_name: weights[our_name].chunk(len(names)) for our_name, names in name_map.items()}
    return {
        name.removeprefix(prefix): _transpose_if_needed(family, our_name, part).contiguous().clone()
        for our_name, names in name_map.items()
        for name, part in zip(names, parts[our_name], strict=True)
    }


def mlm_head_config(family: Family, has_bias: bool = True) -> LMHeadConfig:
    """Our language-model head as the family has it; the bias of the vocabulary is optional in ModernBERT alone."""
    if family.is_modernbert:
        return LMHeadConfig(bias=has_bias)
    return LMHeadConfig(transform=False, bias=False) if family.bare_lm_head else LMHeadConfig()


def _transpose_if_needed(family: Family, our_name: str, tensor: Tensor) -> Tensor:
    """GPT's files store the matrices of the blocks transposed (Conv1D: x @ W)."""
    is_transposed = family.transposed_weights and our_name.startswith("encoder.stack.layers.") and tensor.ndim == 2
    return tensor.T.contiguous() if is_transposed else tensor


def _normalize_names(family: Family, tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    normalized: dict[str, Tensor] = {}
    for old_name, tensor in tensors.items():
        if (name := normalize_name(family, old_name)) is None:
            continue
        if name in normalized:
            raise UserError(f"{source} contains {name} twice, once as {old_name}; remove one of them")
        normalized[name] = tensor
    return normalized


def _drop_tied_copies(family: Family, tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Drop copies of tied tensors; a copy with other values is an error."""
    tensors = dict(tensors)
    for copy, original in family.tied_weights.items():
        if copy not in tensors:
            continue
        tensor = tensors.pop(copy)
        if not torch.equal(tensors.setdefault(original, tensor), tensor):
            raise UserError(f"{source}: {copy} and {original} have different values, but bertsmith ties them")
    return tensors


def _detect_architecture(
    family: Family, config: dict[str, Any], tensors: dict[str, Tensor], source: str
) -> tuple[Architecture, TaskConfig | None]:
    """The class named in config.json, if it has a task that we have; else by the pre-training heads found in the tensors."""
    names = config.get("architectures")
    candidates = (candidate for candidate in family.architectures if candidate.head_type and [candidate.name] == names)
    architecture = next(candidates, None)
    if architecture:
        score = tensors.get(f"{architecture.score_module}.weight")
        if score is None:
            raise UserError(f"{source} has no {architecture.score_module}.weight, but `architectures` in its config.json says "
                           f"{architecture.name}; correct config.json")  # fmt: skip
        if task := task_from_hf(architecture, config, len(score), source):
            return architecture, task
    if family.is_modernbert:  # the dense layer is in every head, so it does not tell which it is
        is_lm = "head.dense.weight" in tensors and f"{family.architectures[-1].score_module}.weight" not in tensors
        return family.architectures[1 if is_lm else 0], None
    if family.bare_lm_head:
        headless = names == [family.architectures[0].name]  # not visible in the tensors: the head has none of its own
        return family.architectures[0 if headless else 1], None
    heads = tuple(sorted(head for head in family.head_modules if has_head(family, head, tensors)))
    return Architecture("", heads, family.pooler_module), None


def _find_pooler(family: Family, architecture: Architecture, tensors: Iterable[str]) -> str | None:
    """Module of the pooler: the architecture's if its head needs one; else the encoder's, if present."""
    if architecture.head_type in ("text", "choice") or PAIR_HEADS & {*architecture.heads}:
        return architecture.pooler_module
    return family.pooler_module if family.pooler_module and f"{family.pooler_module}.weight" in tensors else None


def _find_unexpected_keys(family: Family, names: Iterable[str], source: str) -> list[str]:
    """Names that were not mapped; an error for those of the encoder, except an unused pooler."""
    names, unused_pooler = sorted(names), (f"{family.pooler_module}.weight", f"{family.pooler_module}.bias")
    if in_encoder := [name for name in names if name.startswith(family.prefix) and name not in unused_pooler]:
        raise UserError(f"{source} has encoder weights that bertsmith does not support: {_format_names(in_encoder)}")
    return names


def _check_num_blocks(family: Family, encoder: EncoderConfig, tensors: Iterable[str], source: str) -> None:
    """Compare the number of blocks with the config before the model is built: a wrong number could be huge."""
    block_prefix, expected = (
        family.prefix + family.block_prefix.split("{}")[0],
        encoder.num_hidden_groups or encoder.num_hidden_layers,
    )
    num_blocks = len({name.removeprefix(block_prefix).split(".")[0] for name in tensors if name.startswith(block_prefix)})
    if num_blocks != expected:
        key = family.config_keys["num_hidden_layers" if encoder.num_hidden_groups is None else "num_hidden_groups"]
        raise UserError(f"{source} has the weights of {num_blocks:,} layers, but its config.json says {key} = {expected:,}")


def _build_on_meta(config: ModelConfig, source: str) -> Model:
    """Build on the meta device, without memory; the converted tensors are assigned later."""
    try:
        with torch.device("meta"):
            return Model(config)
    except RuntimeError as error:  # impossible sizes
        raise UserError(f"{source}: the model described by config.json cannot be built: {error}") from None


def _read_vocab_size(config: dict[str, Any], source: str) -> int:
    size = config.get("vocab_size")
    if not isinstance(size, int) or not 0 < size < 1 << 31:
        raise UserError(f"{source}: config.json has vocab_size = {size!r}; it must be a positive integer")
    return size


def _build_head_configs(
    family: Family, architecture: Architecture, config: dict[str, Any], tensors: dict[str, Tensor], source: str
) -> dict[str, HeadConfig]:
    def count_outputs(module: str) -> int:
        _check_nothing_missing({f"{module}.weight"} - tensors.keys(), source)
        return len(tensors[f"{module}.weight"])

    configs: dict[str, HeadConfig] = {}
    for head in architecture.heads:
        if head == "task":
            configs[head] = head_from_hf(family, architecture, config, count_outputs(architecture.score_module))
        elif head in PAIR_HEADS:
            configs[head] = PooledHeadConfig(labels=count_outputs(family.head_modules[head]["classifier"]))
        else:
            lm_head = mlm_head_config(family, config.get("decoder_bias", True))
            configs[head] = lm_head if head == LM_HEAD else DiscriminatorHeadConfig()
    return configs


def _check_nothing_missing(names: Iterable[str], source: str) -> None:
    if names := sorted(names):
        raise UserError(f"{source} lacks tensors that its config.json requires: {_format_names(names)}")


def _to_float32(name: str, tensor: Tensor, source: str) -> Tensor:
    if not tensor.is_floating_point():
        raise UserError(f"{source}: {name} has dtype {tensor.dtype}; quantized models cannot be imported")
    return tensor.to(torch.float32)


def _split_position_rows(family: Family, config: dict[str, Any], weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Cut the rows before position 0 off the position embeddings, in place, and return them."""
    offset = get_position_offset(family, config, source)
    if not offset:
        return {}
    table = weights[POSITION_EMBEDDINGS]
    weights[POSITION_EMBEDDINGS] = table[offset:].contiguous()
    return {POSITION_EMBEDDINGS: table[:offset].clone()}


def _init_missing_weights(encoder: EncoderConfig, name_map: NameMap) -> dict[str, Tensor]:
    """A random pooler if the source has none, and zero segment embeddings for a family without segments."""
    weights: dict[str, Tensor] = {}
    if SEGMENT_EMBEDDINGS not in name_map and encoder.type_vocab_size:
        weights[SEGMENT_EMBEDDINGS] = torch.zeros(encoder.type_vocab_size, encoder.embedding_dim)
    if POOLER_TENSORS[0] not in name_map and encoder.pooler_act != "none":
        weight, limit = torch.empty(encoder.hidden_size, encoder.hidden_size), 2 * encoder.init_std
        generator = torch.Generator().manual_seed(0)
        weights[POOLER_TENSORS[0]] = nn.init.trunc_normal_(weight, std=encoder.init_std, a=-limit, b=limit, generator=generator)
        weights[POOLER_TENSORS[1]] = torch.zeros(encoder.hidden_size)
    return weights


def _check_shapes(model: Model, weights: dict[str, Tensor], name_map: NameMap, source: str) -> None:
    for name, param in model.state_dict().items():
        if weights[name].shape != param.shape:
            hf_names = " + ".join(name_map.get(name, (name,)))
            raise UserError(
                f"{source}: {hf_names} has shape {list(weights[name].shape)}, but config.json implies {list(param.shape)}"
            )


def _format_names(names: list[str], limit: int = 8) -> str:
    suffix = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + suffix
