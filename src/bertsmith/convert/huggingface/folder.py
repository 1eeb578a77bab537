"""Reading and writing of whole Hugging Face checkpoint folders."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ... import tensors
from ...artifacts import read_json, read_object
from ...config import from_dict
from ...errors import UserError
from ...model.checkpoint import MAX_SHARD_SIZE, WEIGHTS_FILE, WEIGHTS_INDEX_FILE, save_weights
from ...model.heads import LM_HEAD, PooledHeadConfig, SequenceHeadConfig, TokenHeadConfig
from ...model.heads.embedding import EMBEDDING_HEAD
from ...model.mixers import Longformer
from ...model.model import Model
from ...model.surgery import drop_heads
from ...tasks import TaskConfig
from ...tokenization.tokenizer import Tokenizer
from ...writing import write_json
from . import custom_code
from . import tokenizer as vocabulary
from .config import (
    check_head_activation,
    config_to_hf,
    detect_family,
    get_family,
    get_position_offset,
    select_encoder_config,
)
from .family import PAIR_HEADS, Architecture, Family
from .mapping import POSITION_EMBEDDINGS, SEGMENT_EMBEDDINGS, ConvertedModel, convert_from_hf, convert_to_hf, mlm_head_config
from .modernbert import needs_classifier_bias
from .names import FAMILIES
from .sentence_transformers import write_modules
from .tasks import export_head_type, task_to_hf
from .weights import find_weight_files, read_weights, select_encoder_weights

EXTRA_TENSORS_FILE = "rest.safetensors"  # in our folder: tensors of the source that our model does not use, kept for export


@dataclass(frozen=True)
class CheckpointRecord:
    """What a checkpoint folder of ours records besides the model."""

    task: TaskConfig | None = None
    family: str | None = None  # model_type it was imported from
    extra_tensors: dict[str, Tensor] = field(default_factory=dict)
    max_length: int = 0  # of a fine-tuned model; 0: the positions of the model


@dataclass(frozen=True)
class ExportTarget:
    """The transformers class and config that a model is exported to; the family is `BERTSMITH` if the code is ours."""

    family: Family
    architecture: Architecture
    config: dict[str, Any]  # config.json
    model: Model  # as exported, see `changes`
    changes: tuple[str, ...] = ()  # how it was rewritten to be expressed there, with the same outputs


def read(folder: Path, attention_dropout: float = 0.0) -> tuple[Family, ConvertedModel, list[Path]]:
    """The converted model, with the given attention dropout, and the files it was read from."""
    config, key = select_encoder_config(read_json(folder / "config.json"))
    if custom_code.is_custom(config):
        return custom_code.read(folder, attention_dropout)
    family = detect_family(config, str(folder / "config.json"))
    files = find_weight_files(folder)
    config[family.config_keys["mixer.attention_dropout"]] = attention_dropout
    weights = select_encoder_weights(family, read_weights(files), key)
    return family, convert_from_hf(family, config, weights, str(folder)), [folder / "config.json", *files]


@contextmanager
def standard_names(folder: Path) -> Iterator[Path]:
    """The folder as transformers opens it: a single .safetensors file of another name is linked as model.safetensors."""
    if select_encoder_config(read_json(folder / "config.json"))[1]:
        raise UserError(f"check=true compares with transformers, which has no class for the model of {folder / 'config.json'}, "
                       "of which only the encoder is imported; leave it out")  # fmt: skip
    file = find_weight_files(folder)[0]
    if file.name == WEIGHTS_FILE or file.suffix != ".safetensors" or (folder / WEIGHTS_INDEX_FILE).exists():
        yield folder
        return
    with TemporaryDirectory() as linked:
        (Path(linked) / WEIGHTS_FILE).symlink_to(file.resolve())
        (Path(linked) / "config.json").symlink_to((folder / "config.json").resolve())
        yield Path(linked)


def write(
    folder: Path, model: Model, tokenizer: Tokenizer, record: CheckpointRecord, max_shard_size: int = MAX_SHARD_SIZE
) -> ExportTarget:
    """Write a folder that transformers loads without missing or unexpected keys."""
    target = choose_target(drop_heads(model, [EMBEDDING_HEAD]) if EMBEDDING_HEAD in model.heads else model, tokenizer, record)
    encoder = target.model.config.encoder
    write_json(folder / "config.json", target.config)
    is_language_model = encoder.is_causal and record.task is None  # its texts end without [SEP]
    vocabulary.write_tokenizer(folder, tokenizer, encoder.max_position_embeddings, encoder.type_vocab_size, is_language_model)
    if record.task is not None and record.task.head_type == "embedding":
        write_modules(folder, record.task, model, record.max_length or encoder.max_position_embeddings)
    if target.family is custom_code.BERTSMITH:
        custom_code.write_code(folder)
        weights = custom_code.weights_to_hf(target.model)
    else:
        position_offset = get_position_offset(target.family, target.config, str(folder))
        weights = convert_to_hf(target.family, target.architecture, target.model, position_offset, record.extra_tensors)
    save_weights(folder, weights, max_shard_size)
    if (folder / WEIGHTS_INDEX_FILE).exists():  # transformers requires the total size
        size = {"total_size": sum(weight.nbytes for weight in weights.values())}
        write_json(folder / WEIGHTS_INDEX_FILE, {"metadata": size, **read_object(folder / WEIGHTS_INDEX_FILE)})
    return target


def choose_target(model: Model, tokenizer: Tokenizer, record: CheckpointRecord) -> ExportTarget:
    """The family that the model was imported from, else the nearest one, else the first that can represent it.

    If none can, the same without the heads of pre-training that few classes have; then our own code beside the weights.
    """
    families = dict.fromkeys([record.family or _nearest_family(model), *FAMILIES])
    smaller, dropped = custom_code.drop_pretraining_heads(model)
    for candidate, changes in [(model, ()), (smaller, dropped)][: 1 + bool(dropped)]:
        errors = list[UserError]()
        for family in families:
            try:
                target = _build_target(get_family(family), candidate, tokenizer, record)
                return replace(target, changes=(*changes, *target.changes))
            except UserError as error:
                errors.append(error)
    return _build_custom_target(smaller, dropped, tokenizer, record, str(errors[0]))


def select_architecture(family: Family, model: Model, task: TaskConfig | None) -> Architecture:
    """The family's transformers class with the heads of the model."""
    heads = tuple(sorted(model.config.heads))
    if model.decoder is not None or (task is not None and task.head_type == "lm"):
        raise UserError(f"transformers' {family.model_type} does not support sequence-to-sequence models")
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
        if name == LM_HEAD and head != mlm_head_config(family, getattr(head, "bias", True)):
            raise UserError(f"the language-model head differs from that of transformers' {family.model_type}")
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
    record: dict[str, Any] = read_object(folder / "config.json")
    task = from_dict(TaskConfig, record["task"], str(folder / "config.json")) if "task" in record else None  # type: ignore[arg-type]
    extra_tensors = tensors.load_tensors(folder / EXTRA_TENSORS_FILE) if (folder / EXTRA_TENSORS_FILE).exists() else {}
    return CheckpointRecord(task, record.get("family"), extra_tensors, record.get("max_length", 0))


def _nearest_family(model: Model) -> str:
    """model_type of the family most like a model that was not imported."""
    encoder = model.config.encoder
    if encoder.norm == "pre" and not encoder.is_causal:
        return "modernbert"
    if encoder.is_causal:
        return "gpt2" if encoder.norm == "pre" else "openai-gpt"
    return "longformer" if isinstance(encoder.mixer, Longformer) else "electra" if "rtd" in model.config.heads else "bert"


def _build_target(family: Family, model: Model, tokenizer: Tokenizer, record: CheckpointRecord) -> ExportTarget:
    architecture = select_architecture(family, model, record.task)
    model, changes = _rewrite_model(family, architecture, model, record.task)
    encoder = model.config.encoder
    check_head_activation(family, encoder, architecture.heads, "this model")
    special_ids = {"pad": tokenizer.pad_token_id, "cls": tokenizer.cls_token_id, "sep": tokenizer.sep_token_id}
    if family.positions_after_pad and POSITION_EMBEDDINGS in record.extra_tensors:
        # positions start after the source's padding id, whatever the tokenizer's is
        special_ids["pad"] = len(record.extra_tensors[POSITION_EMBEDDINGS]) - 1
    config = config_to_hf(family, architecture, encoder, special_ids) | {"vocab_size": model.config.vocab_size}
    head = model.config.heads.get("task")
    if record.task is not None and isinstance(head, SequenceHeadConfig | TokenHeadConfig):
        default_dropout = family.defaults.get(architecture.dropout_key or "", encoder.hidden_dropout_prob)
        config |= task_to_hf(record.task, architecture, head.dropout, default_dropout)
    if family.is_modernbert:
        lm_head = model.config.heads.get(LM_HEAD)
        config |= {"classifier_bias": needs_classifier_bias(model.state_dict()), "decoder_bias": getattr(lm_head, "bias", True)}
    return ExportTarget(family, architecture, config, model, changes)


def _build_custom_target(
    model: Model, dropped: tuple[str, ...], tokenizer: Tokenizer, record: CheckpointRecord, reason: str
) -> ExportTarget:
    """The model with our own code, unchanged but for its temperature; an error that names what the code does not have."""
    task = record.task
    custom_code.check_supported(model, task)
    if task is not None and task.logit_temperature != 1:
        model = fold_temperature(model, task.logit_temperature)
        task = msgspec.structs.replace(task, temperature=1.0)
    architecture = custom_code.select_architecture(model, export_head_type(task) if task is not None else None)
    config = custom_code.build_config(architecture, model, task, record.max_length, tokenizer.pad_token_id)
    head = model.config.heads.get("task")
    if task is not None and isinstance(head, SequenceHeadConfig | TokenHeadConfig):
        config |= task_to_hf(task, architecture, head.dropout, head.dropout)
    changes = (f"{custom_code.MODELING_FILE}: the model's code, since {reason}; open with trust_remote_code=True", *dropped)
    return ExportTarget(custom_code.BERTSMITH, architecture, config, model, changes)


def _rewrite_model(
    family: Family, architecture: Architecture, model: Model, task: TaskConfig | None
) -> tuple[Model, tuple[str, ...]]:
    """A model with the same outputs that the family can express, and what was changed."""
    changes = list[str]()
    if "token_type_embeddings" not in family.embeddings and (folded := _fold_segment_embeddings(model)) is not model:
        model = folded
        changes.append(f"encoder.token_type_embeddings: added to the position embeddings, since {architecture.name} has none")
    has_fixed_size = family.default_intermediate_4x and "feedforward.intermediate_size" not in family.config_keys
    if has_fixed_size and (widened := _widen_feedforward(model)) is not model:
        model, size = widened, 4 * model.config.encoder.hidden_size
        changes.append(f"feedforward: padded with zeros to {size} units, 4 * hidden_size, as {architecture.name} requires")
    if task is not None and task.logit_temperature != 1:
        model = fold_temperature(model, task.logit_temperature)  # reported by `Task.export_notes`
    return model, tuple(changes)


def fold_temperature(model: Model, temperature: float) -> Model:
    """Weight and bias of the last linear layer divided by the temperature: softmax(logits) is then calibrated."""
    model = deepcopy(model)
    classifier = getattr(model.heads["task"], "classifier", None)
    if not isinstance(classifier, nn.Linear):
        raise UserError(f"temperature = {temperature:g} cannot be folded into the head, which has no last linear layer")
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.div_(temperature)
    return model


def _widen_feedforward(model: Model) -> Model:
    """Feed-forward layers padded to 4 * hidden_size: the output weights of the new units are zero. Wider ones stay."""
    encoder = model.config.encoder
    size, feedforward = 4 * encoder.hidden_size, encoder.feedforward
    if feedforward is None or feedforward.glu or feedforward.intermediate_size >= size:
        return model
    wide = msgspec.structs.replace(feedforward, intermediate_size=size)
    config = msgspec.structs.replace(model.config, encoder=msgspec.structs.replace(encoder, feedforward=wide))
    widened = Model(config, init_weights=False)
    weights = {}
    for name, expected in widened.state_dict().items():
        weights[name] = expected.new_zeros(expected.shape)
        old = model.state_dict()[name]
        weights[name][tuple(map(slice, old.shape))] = old
    widened.load_state_dict(weights)
    return widened.eval()


def _fold_segment_embeddings(model: Model) -> Model:
    """Add the embedding of the only segment, which every token has, to the position embeddings.

    A family without segments was imported with zeros: then the model is returned unchanged.
    """
    if SEGMENT_EMBEDDINGS in model.state_dict() and model.state_dict()[SEGMENT_EMBEDDINGS].any():
        if model.config.encoder.position_embedding_type != "absolute":
            raise UserError("this model has segment embeddings, but no learned position embeddings that they could be added to")
        model = deepcopy(model)
        with torch.no_grad():
            assert model.encoder.position_embeddings is not None and model.encoder.token_type_embeddings is not None
            model.encoder.position_embeddings.weight += model.encoder.token_type_embeddings.weight[0]
            model.encoder.token_type_embeddings.weight.zero_()
    return model
