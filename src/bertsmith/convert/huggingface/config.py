"""Conversion between Hugging Face's config.json and `EncoderConfig`, both ways."""

from typing import Any

import msgspec

from ...config import RecipeError, from_dict, to_dict
from ...errors import UserError
from ...model.config import BERT_INIT_STD, EncoderConfig
from ...model.heads import LM_HEAD
from ...model.mixers import Attention, Longformer
from . import modernbert
from .family import Architecture, Family
from .names import BERT, FAMILIES

# Keys of Longformer; the last two are in the authors' files only, not in transformers.
ATTENTION_WINDOW, ATTENTION_DILATION, AUTOREGRESSIVE = "attention_window", "attention_dilation", "autoregressive"
# Keys whose other values mean a model that we do not have.
SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "inner_group_num": (1,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}
ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu-tanh", "gelu_fast": "gelu-tanh", "relu": "relu",
    "gelu_pytorch_tanh": "gelu-tanh", "gelu_python_tanh": "gelu-tanh", "silu": "silu", "swish": "silu",
}  # fmt: skip
HF_ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "silu": "silu"}
ENCODER_KEYS = ("encoder", "bert", "transformer", "backbone", "text_encoder", "text_config", "config")  # of a nested config
# Missing in some of Google's files: our defaults, BERT's values, apply.
OPTIONAL_KEYS = (
    "hidden_dropout_prob",
    "mixer.attention_dropout",
    "layer_norm_eps",
    "initializer_range",
    "feedforward.hidden_act",
)


def select_encoder_config(config: Any) -> tuple[Any, str]:
    """The config of the encoder and its key, where config.json describes a larger model around it (LTP); else as it is, and "".

    The classes named there (`architectures`) are not those of the weights, whose heads belong to the larger model.
    """
    if not isinstance(config, dict) or config.get("model_type") in FAMILIES or "hidden_size" in config:
        return config, ""
    nested = {key: table for key in ENCODER_KEYS if isinstance(table := config.get(key), dict) and "model_type" in table}
    if len(nested) != 1:
        return config, ""
    key, table = next(iter(nested.items()))
    return {name: value for name, value in table.items() if name != "architectures"}, key


def detect_family(config: dict[str, Any], source: str) -> Family:
    """Family of a config.json by `model_type`; without it, as in Google's files, BERT."""
    if not isinstance(config, dict):
        raise UserError(f"{source} is not a JSON object, but a {type(config).__name__}")
    model_type = str(config.get("model_type", "bert"))
    if model_type not in FAMILIES:
        raise UserError(f"{source} has model_type = {model_type!r}, which is not supported; supported: {', '.join(FAMILIES)}")
    for name, allowed in SUPPORTED_VALUES.items():
        if config.get(name, allowed[0]) not in allowed:
            raise UserError(f"{source} has {name} = {config[name]!r}, which is not supported; it must be {allowed[0]!r}")
    return FAMILIES[model_type]


def get_position_offset(family: Family, config: dict[str, Any], source: str) -> int:
    """Number of position embeddings before position 0 (RoBERTa: pad_token_id + 1)."""
    if not family.positions_after_pad:
        return 0
    pad = config.get("pad_token_id", 1)
    if not isinstance(pad, int) or not 0 <= pad < 1 << 16:
        raise UserError(
            f"{source} has pad_token_id = {pad!r}; it must be an integer from 0: positions of {family.model_type} start "
            "after it"
        )
    return pad + 1


def config_from_hf(family: Family, config: dict[str, Any], source: str) -> EncoderConfig:
    """The encoder described by a config.json."""
    config, values = {**family.defaults, **config}, dict(family.fixed_values)
    if family.is_modernbert:
        values |= modernbert.layer_values(config, config.get("num_hidden_layers"), source)
    for name, hf_key in family.config_keys.items():
        if config.get(hf_key) is not None:
            values[name] = config[hf_key]
        elif name == "feedforward.intermediate_size" and family.default_intermediate_4x:
            continue
        elif name not in OPTIONAL_KEYS:
            raise UserError(f"{source} has no {hf_key}; it is not a complete config.json of {family.model_type}")
    if isinstance(values["max_position_embeddings"], int):
        values["max_position_embeddings"] -= get_position_offset(family, config, source)
    values |= _map_activation(family, values, source)
    if family.windowed_attention:
        _check_num_layers(values["num_hidden_layers"], source)
        values |= longformer_mixer_values(config, values["num_hidden_layers"], values["mixer.num_attention_heads"], source)
    if family.default_intermediate_4x and isinstance(values["hidden_size"], int):
        values.setdefault("feedforward.intermediate_size", 4 * values["hidden_size"])
    if family.embedding_projection == "narrow" and values["embedding_size"] == values["hidden_size"]:
        values["embedding_size"] = None
    values.setdefault("initializer_range", BERT_INIT_STD)
    try:
        return canonicalize(from_dict(EncoderConfig, nest(values), source))
    except RecipeError as error:
        renamed = [
            f"{ours} is called {key} there" for ours, key in family.config_keys.items() if ours in str(error) and ours != key
        ]
        raise UserError(f"{error}" + (f" ({', '.join(renamed)})" if renamed else "")) from None


def _check_num_layers(number: Any, source: str) -> None:
    """Before a list of that length is made."""
    if type(number) is not int or not 0 < number <= 10_000:
        raise UserError(f"{source} has num_hidden_layers = {number!r}; it must be a number from 1 to 10,000")


def canonicalize(encoder: EncoderConfig) -> EncoderConfig:
    """Equal models as equal configs: groups == layers means no sharing, and equal windows of all layers are one."""
    if isinstance(encoder.mixer, Longformer):
        windows = tuple(collapse_equal(list(encoder.mixer.attention_window)))
        encoder = msgspec.structs.replace(encoder, mixer=msgspec.structs.replace(encoder.mixer, attention_window=windows))
    encoder = modernbert.canonicalize_layers(encoder)
    return (
        msgspec.structs.replace(encoder, num_hidden_groups=None)
        if encoder.num_hidden_groups == encoder.num_hidden_layers
        else encoder
    )


def config_to_hf(
    family: Family, architecture: Architecture, encoder: EncoderConfig, special_ids: dict[str, int]
) -> dict[str, Any]:
    """The config.json of an encoder; an error if it would not read back as the same encoder."""
    values = flatten(to_dict(canonicalize(encoder)))
    if not isinstance(encoder.mixer, Longformer if family.windowed_attention else Attention):
        raise UserError(f"transformers' {family.model_type} does not support mixer={values['mixer.kind']}")
    if encoder.feedforward is None or (unknown := [key for key in family.config_keys if key not in values]):
        missing = "feedforward" if encoder.feedforward is None else unknown[0]
        raise UserError(f"transformers' {family.model_type} requires {missing}, which this model does not have")
    hf_values = {name: values[key] for key, name in family.config_keys.items()}
    activation_names = HF_ACTIVATIONS | {ours: hf_name for hf_name, ours in family.activation_names.items()}
    hf_values[family.config_keys["feedforward.hidden_act"]] = activation_names[encoder.feedforward.hidden_act]
    hf_values |= {name: hf_values[family.config_keys[key]] for name, key in family.repeated_keys.items()}
    if "num_hidden_groups" in family.config_keys:
        hf_values[family.config_keys["num_hidden_groups"]] = encoder.num_hidden_groups or encoder.num_hidden_layers
    if "embedding_size" in family.config_keys:
        hf_values[family.config_keys["embedding_size"]] = encoder.embedding_dim
    config = {
        "model_type": family.model_type,
        "architectures": [architecture.name],
        **hf_values,
        "pad_token_id": special_ids["pad"],
    }
    config |= {"tie_word_embeddings": True, "torch_dtype": "float32"}
    if family.windowed_attention and isinstance(encoder.mixer, Longformer):
        config |= {
            ATTENTION_WINDOW: expand_windows(list(encoder.mixer.attention_window), encoder.num_hidden_layers),
            "sep_token_id": special_ids["sep"],
        }
    if family.model_type in ("roberta", "albert", "longformer") or family.bare_lm_head:
        config |= {"bos_token_id": special_ids["cls"], "eos_token_id": special_ids["sep"]}
    if family.is_modernbert:
        config |= {**modernbert.layer_keys(encoder), **modernbert.special_token_keys(special_ids)}
    config[family.config_keys["max_position_embeddings"]] += get_position_offset(family, config, "config.json")
    read_back = flatten(to_dict(config_from_hf(family, config, "config.json")))
    unused = {"pooler_act"} if not architecture.pooler_module else set[str]()
    unused |= {"head_transform"} if "task" not in architecture.heads else set()
    relevant = {name: value for name, value in values.items() if name not in unused}
    if lost := [f"{name} = {value!r}" for name, value in relevant.items() if read_back.get(name) != value]:
        is_size = lost[0].startswith("feedforward.intermediate_size") and family.default_intermediate_4x
        reason = f" (its size is 4 * hidden_size = {4 * encoder.hidden_size})" if is_size else ""
        raise UserError(f"transformers' {family.model_type} cannot represent {', '.join(lost)}{reason}")
    return config


def check_head_activation(family: Family, encoder: EncoderConfig, heads: tuple[str, ...], source: str) -> None:
    """Raise if the family's MLM head has a fixed activation other than the model's."""
    if family.erf_mlm_head and LM_HEAD in heads and encoder.head_activation != "gelu":
        raise UserError(f"{source}: the layers use {encoder.head_activation}, but the MLM head of {family.model_type} uses "
                        "GELU "
                       "(erf); different activations for layers and head are not supported")  # fmt: skip


def get_family(model_type: str | None) -> Family:
    """The family of a model type; BERT if there is none."""
    return FAMILIES.get(model_type or "", BERT)


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} to {"a": {"b": 1}}."""
    tables: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        table = tables
        for parent in path:
            table = table.setdefault(parent, {})
        table[last] = value
    return tables


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} to {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def longformer_mixer_values(config: dict[str, Any], num_layers: Any, num_heads: Any, source: str) -> dict[str, Any]:
    """Our keys for Longformer's attention: the window of each layer (both sides together); a dilation is for all its heads."""
    windows = _per_layer(config.get(ATTENTION_WINDOW, 512), num_layers, ATTENTION_WINDOW, source)
    if bad_window := next((window for window in windows if window % 2 or window < 2), None):
        raise UserError(f"{source} has {ATTENTION_WINDOW} = {bad_window}; it must be even")
    dilations = _per_layer(config.get(ATTENTION_DILATION, 1), num_layers, ATTENTION_DILATION, source)
    dilated = [dilation for dilation in dilations if dilation > 1]
    if len(set(dilated)) > 1 or dilations[len(dilations) - len(dilated) :] != dilated:
        raise UserError(
            f"{source} has {ATTENTION_DILATION} = {dilations}; only the top layers can be dilated, all by the same factor"
        )
    dilation_values = {"mixer.dilation": dilated[:1] * num_heads, "mixer.dilated_layers": len(dilated)} if dilated else {}
    return {
        "mixer.attention_window": collapse_equal(windows),
        "mixer.causal": bool(config.get(AUTOREGRESSIVE)),
        **dilation_values,
    }


def collapse_equal(windows: list[int]) -> list[int]:
    """A list of one value if all layers have the same."""
    return windows[:1] if len(set(windows)) == 1 else windows


def expand_windows(windows: list[int], num_layers: int) -> list[int]:
    """Attention window of each layer, as in config.json."""
    return windows * num_layers if len(windows) == 1 else windows


def _per_layer(value: Any, num_layers: Any, name: str, source: str) -> list[int]:
    """One integer per layer, from an integer or a list."""
    numbers = [value] * num_layers if isinstance(value, int) and isinstance(num_layers, int) else value
    if not isinstance(numbers, list) or len(numbers) != num_layers or not all(isinstance(number, int) for number in numbers):
        raise UserError(
            f"{source} has {name} = {value!r}, which is neither a number nor a list of {num_layers} numbers, one per layer"
        )
    return numbers


def _map_activation(family: Family, values: dict[str, Any], source: str) -> dict[str, Any]:
    name = values.get(key := "feedforward.hidden_act")
    if name is None:
        return {}
    if name not in (known_names := family.activation_names or ACTIVATIONS):
        known = ", ".join(known_names)
        raise UserError(f"{source} has {family.config_keys[key]} = {name!r}, which is not supported; supported: {known}")
    return {key: known_names[name]}
