"""Folders with the model's code beside them, for encoders whose shape no class of transformers has.

config.json names the classes of `modeling_bertsmith.py` (`auto_map`), a copy of the module of that name here; transformers runs
them with trust_remote_code=True. Config and tensor names are those of our checkpoints.
"""

from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from ...artifacts import read_json
from ...config import from_dict, to_dict
from ...errors import UserError
from ...model.building import build_for_weights
from ...model.config import EncoderConfig
from ...model.heads import (
    LM_HEAD,
    DiscriminatorHeadConfig,
    LMHeadConfig,
    PooledHeadConfig,
    SequenceHeadConfig,
    TokenHeadConfig,
)
from ...model.mixers import Attention, Longformer
from ...model.mixers.base import BaseMixerConfig
from ...model.model import Model, ModelConfig
from ...model.surgery import drop_heads
from ...tasks import TaskConfig
from ...tasks.base import JointPair
from ...writing import write_atomic
from .family import Architecture, Family
from .mapping import ConvertedModel
from .weights import find_weight_files, read_weights

MODEL_TYPE = "bertsmith"
MODELING_FILE = "modeling_bertsmith.py"
AUTO_CLASSES = {
    "AutoModel": "BertsmithModel",
    "AutoModelForMaskedLM": "BertsmithForMaskedLM",
    "AutoModelForSequenceClassification": "BertsmithForSequenceClassification",
    "AutoModelForTokenClassification": "BertsmithForTokenClassification",
    "AutoModelForQuestionAnswering": "BertsmithForQuestionAnswering",
    "AutoModelForMultipleChoice": "BertsmithForMultipleChoice",
}
CAUSAL_CLASSES = {"AutoModelForCausalLM": "BertsmithForCausalLM"}
RENAMED = {f"heads.{LM_HEAD}.bias": f"heads.{LM_HEAD}.output_embeddings.bias"}  # our name -> that of the code
# Heads of pre-training that the code has no classes for; they are left out.
DROPPED_HEADS = {"nsp": PooledHeadConfig(labels=2), "sop": PooledHeadConfig(labels=2), "rtd": DiscriminatorHeadConfig()}
OTHER_FORMATS = "format=onnx writes a graph that needs no class, format=int8 a smaller bertsmith checkpoint of any model"

POOLER = "encoder.pooler"
# Not a family of transformers, but described in the same terms: `embeddings` says which inputs the model takes.
BERTSMITH = Family(
    model_type=MODEL_TYPE,
    prefix="encoder.",
    embeddings={name: name for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")},
    modules={},
    block_prefix="stack.layers.{}.",
    block_modules={},
    head_modules={},
    tied_weights={},
    architectures=(
        Architecture("BertsmithModel", (), POOLER),
        Architecture("BertsmithForMaskedLM", ("lm",), POOLER),
        Architecture("BertsmithForSequenceClassification", ("task",), POOLER, "text"),
        Architecture("BertsmithForTokenClassification", ("task",), POOLER, "token"),
        Architecture("BertsmithForQuestionAnswering", ("task",), POOLER, "span"),
        Architecture("BertsmithForMultipleChoice", ("task",), POOLER, "choice"),
    ),
    config_keys={},
    fixed_values={},
)
CAUSAL_LM = Architecture("BertsmithForCausalLM", ("lm",), POOLER)


def check_supported(model: Model, task: TaskConfig | None) -> None:
    """Raise a UserError that names what the code cannot compute."""
    if problem := _find_problem(model, task):
        raise UserError(f"format=hf cannot express this model: transformers has no class of its shape, and {MODELING_FILE}, "
                       f"which is written beside others, does not support {problem}; {OTHER_FORMATS}")  # fmt: skip


def drop_pretraining_heads(model: Model) -> tuple[Model, tuple[str, ...]]:
    """The model without heads that the code has no class for, and what was dropped."""
    dropped = [name for name, head in model.config.heads.items() if DROPPED_HEADS.get(name) == head]
    if not dropped:
        return model, ()
    notes = (f"heads.{name}: not exported, since no class has this head here" for name in dropped)
    return drop_heads(model, dropped), tuple(notes)


def select_architecture(model: Model, head_type: Any) -> Architecture:
    """The class of the code with the heads of the model."""
    heads = tuple(sorted(model.config.heads))
    if heads == (LM_HEAD,) and model.config.encoder.is_causal:
        return CAUSAL_LM
    architecture = BERTSMITH.find_architecture(heads, head_type if heads else None)
    assert architecture is not None  # see `check_supported`
    return architecture


def build_config(
    architecture: Architecture, model: Model, task: TaskConfig | None, max_length: int, pad_token_id: int
) -> dict[str, Any]:
    """config.json: what transformers asks of any model, and our own config under `bertsmith`."""
    encoder = model.config.encoder
    classes = AUTO_CLASSES | (CAUSAL_CLASSES if encoder.is_causal else {})
    record: dict[str, Any] = {"model": to_dict(model.config)}
    if task is not None:
        record |= {"task": to_dict(task), "max_length": max_length}
    lm_head = model.config.heads.get(LM_HEAD)
    return {
        "model_type": MODEL_TYPE,
        "architectures": [architecture.name],
        "auto_map": {
            name: f"{MODELING_FILE.removesuffix('.py')}.{class_name}"
            for name, class_name in {"AutoConfig": "BertsmithConfig", **classes}.items()
        },
        "hidden_size": encoder.hidden_size,
        "num_hidden_layers": encoder.num_hidden_layers,
        "num_attention_heads": getattr(encoder.mixer, "num_attention_heads", 1),
        "max_position_embeddings": encoder.max_position_embeddings,
        "type_vocab_size": encoder.type_vocab_size,
        "initializer_range": encoder.init_std,
        "vocab_size": model.config.vocab_size,
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": not isinstance(lm_head, LMHeadConfig) or lm_head.tied,
        "torch_dtype": "float32",
        "bertsmith": record,
    }


def write_code(folder: Path) -> None:
    """Copy the code beside the weights."""
    write_atomic(folder / MODELING_FILE, Path(__file__).with_name(MODELING_FILE).read_bytes())


def weights_to_hf(model: Model) -> dict[str, Tensor]:
    """State dict of the code's class; of the bare encoder without the prefix."""
    prefix = "" if model.config.heads else BERTSMITH.prefix
    return {
        RENAMED.get(name, name).removeprefix(prefix): weight.contiguous().clone() for name, weight in model.state_dict().items()
    }


def is_custom(config: Any) -> bool:
    """Whether a config.json is of a folder written here."""
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


def read(folder: Path, attention_dropout: float = 0.0) -> tuple[Family, ConvertedModel, list[Path]]:
    """The model of a folder written here, or saved by transformers from one, and the files it was read from."""
    source = folder / "config.json"
    hf_config, weight_files = read_json(source), find_weight_files(folder)
    record = hf_config.get("bertsmith")
    if not isinstance(record, dict) or "model" not in record:
        raise UserError(f"{source} has no bertsmith.model, the config of the model; export the model again")
    config = from_dict(ModelConfig, record["model"], str(source))
    if attention_dropout and isinstance(config.encoder.mixer, Attention | Longformer):
        mixer = msgspec.structs.replace(config.encoder.mixer, attention_dropout=attention_dropout)
        config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, mixer=mixer))
    task = from_dict(TaskConfig, record["task"], str(source)) if record.get("task") else None  # type: ignore[arg-type]
    our_names = {theirs: ours for ours, theirs in RENAMED.items()}
    weights = {}
    for name, tensor in read_weights(weight_files).items():
        full_name = name if name.startswith(("encoder.", "heads.")) else f"{BERTSMITH.prefix}{name}"
        weights[our_names.get(full_name, full_name)] = tensor.float()
    model = build_for_weights(config, None, {name: tuple(tensor.shape) for name, tensor in weights.items()}, folder)
    model.load_state_dict(weights)
    max_length = record.get("max_length")
    return BERTSMITH, ConvertedModel(model.eval(), task, [], [], {}, max_length if isinstance(max_length, int) else None), [
        source, *weight_files,
    ]  # fmt: skip


def _find_problem(model: Model, task: TaskConfig | None) -> str | None:
    """What the code has no counterpart for; None if it has all."""
    encoder, heads = model.config.encoder, model.config.heads
    if model.decoder is not None or (task is not None and task.head_type == "lm"):
        return "sequence-to-sequence models"
    if task is not None and not isinstance(task.pair, JointPair):
        return f"task.pair = {task.pair.__struct_config__.tag}"
    if "task" in heads and task is None:
        return "a head `task` without the task that defines its labels (fine-tune the model again)"
    for name, head in heads.items():
        expected = {LM_HEAD: LMHeadConfig, "task": SequenceHeadConfig | TokenHeadConfig}.get(name)
        if DROPPED_HEADS.get(name) != head and (expected is None or not isinstance(head, expected)):
            return f"the head `{name}` of kind {head.__struct_config__.tag}"
    if LM_HEAD in heads and "task" in heads:
        return "a language-model head and a task head together"
    return _find_encoder_problem(encoder)


def _find_encoder_problem(encoder: EncoderConfig) -> str | None:
    mixers = [encoder.mixer, *([encoder.layer_types.mixer] if encoder.layer_types else [])]
    if problem := next(filter(None, map(_find_mixer_problem, mixers)), None):
        return problem
    unsupported = {
        "embeddings": encoder.embeddings is not None,
        "position_embedding_type": not isinstance(encoder.position_embedding_type, str),
        "reversible": bool(encoder.reversible),
        "norm = none": encoder.norm == "none",
        "num_hidden_layers = 0": encoder.num_hidden_layers == 0,
    }
    name = next((name for name, is_used in unsupported.items() if is_used), None)
    return None if name is None else f"model.{name}" if "=" in name else f"model.{name} of this kind"


def _find_mixer_problem(mixer: BaseMixerConfig) -> str | None:
    if not isinstance(mixer, Attention | Longformer):
        return f"mixer={mixer.__struct_config__.tag}"
    if isinstance(mixer, Longformer) and mixer.global_attention:
        return "mixer=longformer with global_attention"
    return "mixer.directions = apart" if isinstance(mixer, Attention) and mixer.directions == "apart" else None
