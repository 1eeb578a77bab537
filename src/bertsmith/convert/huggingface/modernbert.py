"""ModernBERT's layers with full and with local attention, and its head: what its config.json says, in both spellings.

transformers 5 writes `layer_types` and `rope_parameters`; before, and in text-embeddings-inference, the same is said by
`global_attn_every_n_layers`, `global_rope_theta` and `local_rope_theta`. Both are written, and either is read.
"""

from typing import Any

import msgspec
from torch import Tensor

from ...errors import UserError
from ...model.config import EncoderConfig
from ...model.mixers import Attention, Longformer

LAYER_TYPES, ROPE_PARAMETERS, WINDOW = "layer_types", "rope_parameters", "local_attention"
EVERY, GLOBAL_THETA, LOCAL_THETA = "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"
FULL, SLIDING = "full_attention", "sliding_attention"
POOLINGS = ("cls", "mean")  # of ModernBertForSequenceClassification
DEFAULTS = {  # of ModernBertConfig, for keys that a config.json may leave out
    WINDOW: 128, EVERY: 3, GLOBAL_THETA: 160_000.0, LOCAL_THETA: 10_000.0, "norm_eps": 1e-5, "norm_bias": False,
    "attention_bias": False, "mlp_bias": False, "embedding_dropout": 0.0, "mlp_dropout": 0.0, "attention_dropout": 0.0,
    "classifier_dropout": 0.0, "classifier_pooling": "cls", "hidden_activation": "gelu", "max_position_embeddings": 8192,
    "initializer_range": 0.02,
}  # fmt: skip


def layer_values(config: dict[str, Any], num_layers: Any, source: str) -> dict[str, Any]:
    """Our keys for the layers of a config.json (with DEFAULTS filled in)."""
    every = _read_every(config, num_layers, source)
    full_theta, local_theta = (_read_theta(config, layer_type, source) for layer_type in (FULL, SLIDING))
    window = config[WINDOW]
    if not isinstance(window, int) or window < 2:
        raise UserError(f"{source} has {WINDOW} = {window!r}; it must be a number of tokens from 2, both sides together")
    if config.get("classifier_activation", config["hidden_activation"]) != config["hidden_activation"]:
        raise UserError(f"{source} has classifier_activation = {config['classifier_activation']!r}, another than that of the "
                       f"layers ({config['hidden_activation']!r}), which is not supported")  # fmt: skip
    if config["classifier_pooling"] not in POOLINGS:
        raise UserError(f"{source} has classifier_pooling = {config['classifier_pooling']!r}; it must be cls or mean")
    values: dict[str, Any] = {"mixer.rope_theta": full_theta}
    if every > 1:
        local = {
            "kind": "longformer", "attention_window": [2 * (window // 2)], "global_attention": False, "rope_theta": local_theta,
            "num_attention_heads": config.get("num_attention_heads"), "bias": config["attention_bias"],
            "attention_dropout": config["attention_dropout"],
        }  # fmt: skip
        values |= {"layer_types.every": every} | {f"layer_types.mixer.{name}": value for name, value in local.items()}
    return values


def layer_keys(encoder: EncoderConfig) -> dict[str, Any]:
    """The keys of config.json that `layer_values` reads, in both spellings."""
    every, local_theta, window = 1, None, DEFAULTS[WINDOW]
    full_theta = encoder.mixer.rope_theta if isinstance(encoder.mixer, Attention) else None
    if encoder.layer_types is not None and isinstance(encoder.layer_types.mixer, Longformer):
        every, local = encoder.layer_types.every, encoder.layer_types.mixer
        local_theta, window = local.rope_theta, local.attention_window[0]
    if full_theta is None or encoder.pooling not in POOLINGS:
        problem = "mixer.rope_theta = none" if full_theta is None else f"pooling = {encoder.pooling!r}"
        raise UserError(f"transformers' modernbert cannot represent {problem}")
    local_theta = full_theta if local_theta is None else local_theta
    layer_types = [FULL if layer % every == 0 else SLIDING for layer in range(encoder.num_hidden_layers)]
    thetas = {FULL: full_theta, SLIDING: local_theta}
    return {
        LAYER_TYPES: layer_types,
        ROPE_PARAMETERS: {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()},
        EVERY: every,
        GLOBAL_THETA: full_theta,
        LOCAL_THETA: local_theta,
        WINDOW: window,
    }


def special_token_keys(special_ids: dict[str, int]) -> dict[str, int]:
    """Ids of special tokens: the defaults are those of ModernBERT's own vocabulary."""
    ids = {"bos": "cls", "cls": "cls", "eos": "sep", "sep": "sep"}
    return {f"{name}_token_id": special_ids[ours] for name, ours in ids.items()}


def canonicalize_layers(encoder: EncoderConfig) -> EncoderConfig:
    """The same model with layers of one type as none, and `every` at most the number of layers."""
    types = encoder.layer_types
    if types is None:
        return encoder
    every = min(types.every, encoder.num_hidden_layers)
    return msgspec.structs.replace(encoder, layer_types=None if every <= 1 else msgspec.structs.replace(types, every=every))


def needs_classifier_bias(weights: dict[str, Tensor]) -> bool:
    """Whether the dense layer of the head has a bias other than zero, as an imported one without a bias has here."""
    return any(bool(weight.any()) for name, weight in weights.items() if is_classifier_bias(name))


def is_classifier_bias(name: str) -> bool:
    return name.startswith("heads.") and name.endswith(".transform.bias")


def _read_every(config: dict[str, Any], num_layers: Any, source: str) -> int:
    """n where the layers 0, n, 2n, ... have full attention; 1 if all have."""
    layer_types = config.get(LAYER_TYPES)
    if layer_types is None:
        every = config[EVERY]
        if not isinstance(every, int) or every < 1:
            raise UserError(f"{source} has {EVERY} = {every!r}; it must be a number of layers from 1")
        return min(every, num_layers) if isinstance(num_layers, int) else every
    if not isinstance(layer_types, list) or len(layer_types) != num_layers or set(layer_types) - {FULL, SLIDING}:
        raise UserError(f"{source} has {LAYER_TYPES} = {layer_types!r}; it must list {FULL} or {SLIDING} for each layer")
    for every in range(1, num_layers + 1):
        if layer_types == [SLIDING if layer % every else FULL for layer in range(num_layers)]:
            return every
    raise UserError(
        f"{source} has {LAYER_TYPES} = {layer_types}; supported is full attention in every n-th layer from the first"
    )


def _read_theta(config: dict[str, Any], layer_type: str, source: str) -> float:
    """Base of RoPE in layers of a type: in `rope_parameters`, else in the older key, which may be null for local layers."""
    parameters = (config.get(ROPE_PARAMETERS) or {}).get(layer_type) or {}
    if parameters.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        scaling = parameters if parameters.get("rope_type", "default") != "default" else config["rope_scaling"]
        raise UserError(f"{source} scales RoPE ({scaling}), which is not supported")
    older = config[GLOBAL_THETA] if layer_type == FULL or config[LOCAL_THETA] is None else config[LOCAL_THETA]
    theta = parameters.get("rope_theta", older)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
        raise UserError(f"{source} has rope_theta = {theta!r} for {layer_type}; it must be a positive number")
    return float(theta)
