"""Reading and writing of whole Hugging Face checkpoint folders."""

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import tensors
from ...artifacts import read_json, write_json
from ...config import from_dict
from ...errors import UserError
from ...model.checkpoint import MAX_SHARD_SIZE, WEIGHTS_INDEX_FILE, save_weights
from ...model.heads import LM_HEAD, PooledHeadConfig, SequenceHeadConfig, TokenHeadConfig
from ...model.mixers import Longformer
from ...model.model import Model
from ...tasks import TaskConfig
from ...tokenization.tokenizer import Tokenizer
from . import tokenizer as vocabulary
from .config import check_head_activation, config_to_hf, detect_family, get_family, get_position_offset
from .mapping import POSITION_EMBEDDINGS, SEGMENT_EMBEDDINGS, ConvertedModel, convert_from_hf, convert_to_hf, mlm_head_config
from .names import FAMILIES, PAIR_HEADS, Architecture, Family
from .tasks import export_head_type, task_to_hf
from .weights import find_weight_files, read_weights

EXTRA_TENSORS_FILE = "rest.safetensors"  # in our folder: tensors of the source that our model does not use, kept for export


@dataclass(frozen=True)
class CheckpointRecord:
    """What a checkpoint folder of ours records besides the model."""

    task: TaskConfig | None = None
    family: str | None = None  # model_type it was imported from
    extra_tensors: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportTarget:
    """The transformers class and config that a model is exported to."""

    family: Family
    architecture: Architecture
    config: dict[str, Any]  # config.json
    model: Model  # as exported: segment embeddings may be folded into positions


def read(folder: Path, attention_dropout: float = 0.0) -> tuple[Family, ConvertedModel, list[Path]]:
    """The converted model, with the given attention dropout, and the files it was read from."""
    config = read_json(folder / "config.json")
    family = detect_family(config, str(folder / "config.json"))
    files = find_weight_files(folder)
    config[family.config_keys["mixer.attention_dropout"]] = attention_dropout
    return family, convert_from_hf(family, config, read_weights(files), str(folder)), [folder / "config.json", *files]


def write(
    folder: Path, model: Model, tokenizer: Tokenizer, record: CheckpointRecord, max_shard_size: int = MAX_SHARD_SIZE
) -> ExportTarget:
    """Write a folder that transformers loads without missing or unexpected keys."""
    target = choose_target(model, tokenizer, record)
    encoder = target.model.config.encoder
    write_json(folder / "config.json", target.config)
    vocabulary.write_tokenizer(folder, tokenizer, encoder.max_position_embeddings, encoder.type_vocab_size, encoder.is_causal)
    position_offset = get_position_offset(target.family, target.config, str(folder))
    weights = convert_to_hf(target.family, target.architecture, target.model, position_offset, record.extra_tensors)
    save_weights(folder, weights, max_shard_size)
    if (folder / WEIGHTS_INDEX_FILE).exists():  # transformers requires the total size
        size = {"total_size": sum(weight.nbytes for weight in weights.values())}
        write_json(folder / WEIGHTS_INDEX_FILE, {"metadata": size, **read_json(folder / WEIGHTS_INDEX_FILE)})
    return target


def choose_target(model: Model, tokenizer: Tokenizer, record: CheckpointRecord) -> ExportTarget:
    """The family that the model was imported from, else the nearest one, else the first that can represent it; if none can,
    the error of the first is raised."""
    errors = list[UserError]()
    for family in dict.fromkeys([record.family or _nearest_family(model), *FAMILIES]):
        try:
            return _build_target(get_family(family), model, tokenizer, record)
        except UserError as error:
            errors.append(error)
    raise errors[0]


def select_architecture(family: Family, model: Model, task: TaskConfig | None) -> Architecture:
    """The family's transformers class with the heads of the model."""
    heads = tuple(sorted(model.config.heads))
    if model.decoder is not None or (task is not None and task.head_type == "lm"):
        raise UserError(f"this is a sequence-to-sequence model, which transformers' {family.model_type} does not support; "
                        "it can only "
                       "be stored as a bertsmith checkpoint")  # fmt: skip
    if heads == ("task",) and task is None:
        raise UserError(
            "this model has a head `task`, but its config.json has no task that defines the labels; fine-tune it again"
        )
    architecture = family.find_architecture(heads, export_head_type(task) if task is not None and heads else None)
    if architecture is None:
        known = sorted({head for architecture in family.architectures for head in architecture.heads})
        task_text = f" for {task.__struct_config__.tag}" if task is not None else ""
        raise UserError(f"this model has the heads {', '.join(heads)}{task_text}; transformers' {family.model_type} "
                       f"supports {', '.join(known)}, but not all combinations of them")  # fmt: skip
    for name, head in model.config.heads.items():
        if name in PAIR_HEADS and head != PooledHeadConfig(labels=2):
            raise UserError(f"the head `{name}` must have two labels, as in transformers")
        if name == LM_HEAD and head != mlm_head_config(family):
            raise UserError(f"the language-model head differs from that of transformers' {family.model_type}; this model can "
                           "only be stored as a bertsmith checkpoint")  # fmt: skip
        if name == "task" and not isinstance(head, SequenceHeadConfig | TokenHeadConfig):
            raise UserError(f"the head `task` is of kind {head.__struct_config__.tag}, which transformers does not have")
    return architecture


def verify_roundtrip(folder: Path, model: Model, architecture: Architecture) -> None:
    """Read back a folder just written; raise if a weight is not bit-identical."""
    _, converted, _ = read(folder)
    read_back, state_dict = converted.model.state_dict(), model.state_dict()
    for name, weight in state_dict.items():
        is_omitted = name.startswith("encoder.pooler.") and not architecture.pooler_module
        if not is_omitted and not torch.equal(weight, read_back[name]):
            raise UserError(f"{folder}: {name} changed in the round trip; nothing was written")


def read_record(folder: Path) -> CheckpointRecord:
    """Task, family and extra tensors of a checkpoint folder of ours."""
    record: dict[str, Any] = read_json(folder / "config.json")
    task = from_dict(TaskConfig, record["task"], str(folder / "config.json")) if "task" in record else None  # type: ignore[arg-type]
    extra_tensors = tensors.load_tensors(folder / EXTRA_TENSORS_FILE) if (folder / EXTRA_TENSORS_FILE).exists() else {}
    return CheckpointRecord(task, record.get("family"), extra_tensors)


def _nearest_family(model: Model) -> str:
    """model_type of the family most like a model that was not imported."""
    encoder = model.config.encoder
    if encoder.is_causal:
        return "gpt2" if encoder.norm == "pre" else "openai-gpt"
    return "longformer" if isinstance(encoder.mixer, Longformer) else "electra" if "rtd" in model.config.heads else "bert"


def _build_target(family: Family, model: Model, tokenizer: Tokenizer, record: CheckpointRecord) -> ExportTarget:
    architecture, encoder = select_architecture(family, model, record.task), model.config.encoder
    check_head_activation(family, encoder, architecture.heads, "this model")
    special_ids = {"pad": tokenizer.pad_token_id, "cls": tokenizer.cls_token_id, "sep": tokenizer.sep_token_id}
    if family.positions_after_pad and POSITION_EMBEDDINGS in record.extra_tensors:
        # positions start after the source's padding id, whatever the tokenizer's is
        special_ids["pad"] = len(record.extra_tensors[POSITION_EMBEDDINGS]) - 1
    config = config_to_hf(family, architecture, encoder, special_ids) | {"vocab_size": model.config.vocab_size}
    head = model.config.heads.get("task")
    if record.task is not None and isinstance(head, SequenceHeadConfig | TokenHeadConfig):
        config |= task_to_hf(record.task, architecture, head.dropout, encoder.hidden_dropout_prob)
    return ExportTarget(
        family, architecture, config, model if "token_type_embeddings" in family.embeddings else _fold_segment_embeddings(model)
    )


def _fold_segment_embeddings(model: Model) -> Model:
    """Add the embedding of the only segment, which every token has, to the position embeddings.

    A family without segments was imported with zeros: then the model is returned unchanged.
    """
    if SEGMENT_EMBEDDINGS in model.state_dict() and model.state_dict()[SEGMENT_EMBEDDINGS].any():
        model = deepcopy(model)
        with torch.no_grad():
            # models without either were refused before
            assert model.encoder.position_embeddings is not None and model.encoder.token_type_embeddings is not None
            model.encoder.position_embeddings.weight += model.encoder.token_type_embeddings.weight[0]
            model.encoder.token_type_embeddings.weight.zero_()
    return model
