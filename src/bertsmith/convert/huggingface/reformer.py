"""Import of Hugging Face's Reformers (Kitaev et al. 2020), whose config keys and tensor names differ from all BERTs."""

import re
from math import lcm, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...artifacts import read_json, read_object
from ...config import RecipeError, from_dict
from ...errors import UserError
from ...model.batch import Inputs
from ...model.building import build_for_weights
from ...model.config import EncoderConfig
from ...model.heads import LM_HEAD, HeadConfig, LMHeadConfig
from ...model.mixers import ReformerChunked
from ...model.model import Model, ModelConfig
from ...model.packing import Layout
from ..parity import TOLERANCE, load_hf_model
from .config import ACTIVATIONS
from .mapping import ConvertedModel
from .weights import find_weight_files, read_weights

MODEL_TYPE = "reformer"
LAYER_KINDS = {"local": "local", "lsh": "lsh"}
BLOCK_MODULES = {
    "mixer_norm": "attention.layer_norm",
    "mixer.output": "attention.output.dense",
    "feedforward_norm": "feed_forward.layer_norm",
    "feedforward.intermediate": "feed_forward.dense.dense",
    "feedforward.output": "feed_forward.output.dense",
}
LM_HEAD_WEIGHT, LM_HEAD_BIAS = "lm_head.decoder.weight", "lm_head.bias"
IGNORED_TENSORS = r"mask_value_float(16|32)$|^lm_head\.decoder\.bias$"  # buffers in older files, and a copy of the bias


def is_reformer(folder: Path) -> bool:
    """Whether a folder holds a Reformer."""
    if not (folder / "config.json").is_file():
        return False
    config = read_json(folder / "config.json")
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


def read(folder: Path) -> tuple[ConvertedModel, list[Path]]:
    """The converted model, with its LM head if there is one, and the files it was read from."""
    source, files = str(folder), find_weight_files(folder)
    settings = _read_config(folder)
    unprefixed = {re.sub(r"^reformer\.", "", name): tensor for name, tensor in read_weights(files).items()}
    tensors = {name: tensor.float() for name, tensor in unprefixed.items() if not re.search(IGNORED_TENSORS, name)}
    encoder = _build_encoder_config(settings, source)
    name_map = _build_name_map(encoder, LM_HEAD_WEIGHT in tensors)
    if missing := sorted({name for names in name_map.values() for name in names} - tensors.keys()):
        raise UserError(f"{source} lacks tensors that its config.json requires: {', '.join(missing[:8])}")
    unexpected = sorted(tensors.keys() - {name for names in name_map.values() for name in names})
    if in_encoder := [name for name in unexpected if name.startswith(("embeddings.", "encoder."))]:
        raise UserError(f"{source} has encoder weights that bertsmith does not support: {', '.join(in_encoder[:8])}")
    heads: dict[str, HeadConfig] = {LM_HEAD: LMHeadConfig(transform=False, tied=False)} if LM_HEAD_WEIGHT in tensors else {}
    vocab_size = len(tensors["embeddings.word_embeddings.weight"])
    config = ModelConfig(encoder=encoder, vocab_size=vocab_size, heads=heads)
    weights = {ours: _join([tensors[name] for name in names], names, source) for ours, names in name_map.items()}
    weights |= {ours: weight.flatten(0, -2) for ours, weight in weights.items() if ".axial_position_embeddings." in ours}
    model = build_for_weights(config, None, {name: tuple(weight.shape) for name, weight in weights.items()}, folder, name_map)
    model.load_state_dict(weights)
    return ConvertedModel(model.eval(), None, unexpected, []), [folder / "config.json", *files]


def _join(parts: list[Tensor], names: tuple[str, ...], source: str) -> Tensor:
    if any(part.ndim == 0 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        shapes = [list(part.shape) for part in parts]
        raise UserError(f"{source}: {' + '.join(names)} have the shapes {shapes}, which cannot be joined")
    return torch.cat(parts)


@torch.inference_mode()
def check_parity(model: Model, folder: Path) -> dict[str, float]:
    """Maximum absolute differences to transformers, per sequence and with our hash seed; an error if one exceeds TOLERANCE."""
    mixer, has_lm_head = model.config.encoder.mixer, LM_HEAD in model.config.heads
    assert isinstance(mixer, ReformerChunked)
    name = "ReformerModel" if not has_lm_head else "ReformerModelWithLMHead" if mixer.causal else "ReformerForMaskedLM"
    hf_model, differences = load_hf_model(folder, name), dict[str, float]()
    for module in hf_model.modules():
        if hasattr(module, "hash_seed"):
            module.hash_seed = mixer.seed
            module.num_buckets = mixer.num_buckets if isinstance(mixer.num_buckets, int) else list(mixer.num_buckets)
    multiple = lcm(mixer.local.chunk_length, mixer.lsh.chunk_length)
    for length in {min(model.config.encoder.max_position_embeddings, candidate) for candidate in (multiple, 4 * multiple)}:
        tokens = 1 + torch.arange(length) * 7 % (model.config.vocab_size - 1)
        hf_encoder = hf_model.reformer if has_lm_head else hf_model
        hf_hidden, hidden = (
            hf_encoder(tokens[None], use_cache=False).last_hidden_state[0],
            model(Inputs(tokens, Layout.from_lengths([length]))),
        )
        pairs = {"hidden": (hidden, hf_hidden)}
        if has_lm_head:  # transformers 5 loads the bias but does not add it
            missing_bias = hf_model.lm_head.bias if hf_model.lm_head.decoder.bias is None else 0.0
            pairs[LM_HEAD] = (model.compute_logits(LM_HEAD, hidden), hf_model.lm_head(hf_hidden[None])[0] + missing_bias)
        for output, (ours, theirs) in pairs.items():
            differences[output] = max(differences.get(output, 0.0), float((ours - theirs).abs().max()))
    if too_large := {output: value for output, value in differences.items() if not value < TOLERANCE}:
        raise UserError(f"{folder}: transformers' {name} gives different outputs ({too_large}); nothing was written")
    return differences


def _read_config(folder: Path) -> dict[str, Any]:
    """config.json, completed with transformers' defaults."""
    defaults = {"is_decoder": False, "hash_seed": None, "num_buckets": None, "num_hashes": 1, "axial_pos_embds": True,
             "chunk_size_feed_forward": 0, "hidden_act": "relu", "layer_norm_eps": 1e-12, "initializer_range": 0.02,
             "hidden_dropout_prob": 0.05}  # fmt: skip
    for kind in ("local", "lsh"):
        defaults |= {f"{kind}_num_chunks_before": 1, f"{kind}_num_chunks_after": 0, f"{kind}_attn_chunk_length": 64}
        defaults[f"{kind}_attention_probs_dropout_prob"] = 0.0
    config: dict[str, Any] = read_object(folder / "config.json")
    return {**defaults, **config}


def _build_encoder_config(config: dict[str, Any], source: str) -> EncoderConfig:
    try:
        activation, layers = ACTIVATIONS[config["hidden_act"]], [LAYER_KINDS[kind] for kind in config["attn_layers"]]
        shape = list(config["axial_pos_shape"]) if config["axial_pos_embds"] else []
        table = {"shape": shape, "widths": list(config["axial_pos_embds_dim"])} if shape else "absolute"
        max_length = min(config["max_position_embeddings"], prod(shape) if shape else config["max_position_embeddings"])
        feedforward = {"intermediate_size": config["feed_forward_size"], "hidden_act": activation}
        values = {
            "num_hidden_layers": len(layers), "hidden_size": 2 * config["hidden_size"], "embedding_size": config["hidden_size"],
            "reversible": "halves", "norm": "pre", "type_vocab_size": 0, "embedding_norm": False, "pooler_act": "none",
            "max_position_embeddings": max_length, "position_embedding_type": table,
            "hidden_dropout_prob": config["hidden_dropout_prob"], "layer_norm_eps": config["layer_norm_eps"],
            "initializer_range": config["initializer_range"],
            "feedforward": feedforward | ({"chunk_size": chunk} if (chunk := config["chunk_size_feed_forward"]) else {}),
            "mixer": _mixer_values(config, layers, max_length),
        }  # fmt: skip
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{source}: config.json is incomplete, or describes a Reformer that bertsmith does not support: {error}"
        ) from None
    try:
        return from_dict(EncoderConfig, values, source)
    except RecipeError as error:
        raise UserError(str(error)) from None


def _mixer_values(config: dict[str, Any], layers: list[str], max_length: int) -> dict[str, Any]:
    hf_suffixes = {
        "chunk_length": "attn_chunk_length",
        "num_chunks_before": "num_chunks_before",
        "num_chunks_after": "num_chunks_after",
        "attention_dropout": "attention_probs_dropout_prob",
    }
    kind_values = {
        ours: {key: config[f"{kind}_{suffix}"] for key, suffix in hf_suffixes.items()} for kind, ours in LAYER_KINDS.items()
    }
    return {
        "kind": "reformer-chunked", "attn_layers": layers,
        "num_attention_heads": config["num_attention_heads"], "attention_head_size": config["attention_head_size"],
        "num_buckets": config["num_buckets"] or _default_num_buckets(max_length, kind_values["lsh"]["chunk_length"]),
        "num_hashes": config["num_hashes"], "seed": config["hash_seed"] or 0, "causal": config["is_decoder"], **kind_values,
    }  # fmt: skip


def _default_num_buckets(max_length: int, chunk_length: int) -> int | list[int]:
    """Number of buckets if the config has none: transformers takes 2 * chunks of the first input; here, of the longest."""
    power = max(1, (2 * (max_length // chunk_length)).bit_length() - 1)
    limit = 2 * max(int((max_length // chunk_length) ** 0.5), chunk_length)
    return 2**power if 2**power <= limit else [2 ** (power // 2), 2 ** (power - power // 2)]


def _build_name_map(encoder: EncoderConfig, has_lm_head: bool) -> dict[str, tuple[str, ...]]:
    """Our tensor names to the source tensors that are concatenated (dim 0) to form them."""
    assert isinstance(encoder.mixer, ReformerChunked)
    name_map: dict[str, tuple[str, ...]] = {"encoder.word_embeddings.weight": ("embeddings.word_embeddings.weight",)}
    modules = {"encoder.stack.final_norm": "encoder.layer_norm"}
    if encoder.position_embedding_type == "absolute":
        name_map["encoder.position_embeddings.weight"] = ("embeddings.position_embeddings.embedding.weight",)
    else:
        axes = range(len(encoder.position_embedding_type.shape))  # type: ignore[union-attr]
        name_map |= {
            f"encoder.axial_position_embeddings.axes.{n}.weight": (f"embeddings.position_embeddings.weights.{n}",) for n in axes
        }
    for i, kind in enumerate(encoder.mixer.attn_layers):
        our_prefix, hf_prefix = f"encoder.stack.layers.{i}", f"encoder.layers.{i}"
        modules |= {f"{our_prefix}.{ours}": f"{hf_prefix}.{theirs}" for ours, theirs in BLOCK_MODULES.items()}
        projections = ("query", "key", "value") if kind == "local" else ("query_key", "value")
        name_map[f"{our_prefix}.mixer.qkv.weight"] = tuple(
            f"{hf_prefix}.attention.self_attention.{name}.weight" for name in projections
        )
    for ours, theirs in modules.items():
        parts = ("weight",) if ours.endswith("mixer.output") else ("weight", "bias")
        name_map |= {f"{ours}.{part}": (f"{theirs}.{part}",) for part in parts}
    return name_map | (
        {"heads.lm.output_embeddings.weight": (LM_HEAD_WEIGHT,), "heads.lm.bias": (LM_HEAD_BIAS,)} if has_lm_head else {}
    )
