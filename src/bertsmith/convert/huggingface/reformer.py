"""Hugging Face's Reformers, whose settings and names are like those of no BERT."""

import re
from math import lcm, prod
from pathlib import Path
from typing import Any

import torch

from ...artifacts import read_json
from ...config import RecipeError, from_dict
from ...errors import UserError
from ...model.batch import Inputs
from ...model.config import EncoderConfig
from ...model.heads import HeadConfig, LMHeadConfig
from ...model.mixers import ReformerChunked
from ...model.model import Model, ModelConfig
from ...model.packing import Layout
from ..parity import TOLERANCE, load_hf_model
from .config import ACTIVATIONS
from .mapping import ConvertedModel
from .weights import find_weight_files, read_weights

MODEL_TYPE = "reformer"
LAYER_KINDS = {"local": "near", "lsh": "hashed"}
BLOCK_MODULES = {
    "mixer_norm": "attention.layer_norm",
    "mixer.out": "attention.output.dense",
    "feedforward_norm": "feed_forward.layer_norm",
    "feedforward.up": "feed_forward.dense.dense",
    "feedforward.down": "feed_forward.output.dense",
}
LM_HEAD_WEIGHT, LM_HEAD_BIAS = "lm_head.decoder.weight", "lm_head.bias"
IGNORED_TENSORS = r"mask_value_float(16|32)$|^lm_head\.decoder\.bias$"  # constants of older files, and a copy


def is_reformer(folder: Path) -> bool:
    """A folder of one of them."""
    if not (folder / "config.json").is_file():
        return False
    config = read_json(folder / "config.json")
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


def read(folder: Path) -> tuple[ConvertedModel, list[Path]]:
    """The model, with its head over the words if it has one, and the files it was read from."""
    source, files = str(folder), find_weight_files(folder)
    config = _read_config(folder)
    named = {re.sub(r"^reformer\.", "", name): tensor for name, tensor in read_weights(files).items()}
    tensors = {name: tensor.float() for name, tensor in named.items() if not re.search(IGNORED_TENSORS, name)}
    encoder = _build_encoder_config(config, source)
    where = _build_name_map(encoder, LM_HEAD_WEIGHT in tensors)
    if missing := sorted({name for names in where.values() for name in names} - tensors.keys()):
        raise UserError(f"{source} lacks what its config.json promises: {', '.join(missing[:8])}")
    unmatched = sorted(tensors.keys() - {name for names in where.values() for name in names})
    if inside := [name for name in unmatched if name.startswith(("embeddings.", "encoder."))]:
        raise UserError(f"{source} holds parts of an encoder that this model has no place for: {', '.join(inside[:8])}")
    heads: dict[str, HeadConfig] = {"words": LMHeadConfig(transform=False, tied=False)} if LM_HEAD_WEIGHT in tensors else {}
    model = Model(
        ModelConfig(encoder=encoder, vocabulary=len(tensors["embeddings.word_embeddings.weight"]), heads=heads), False
    )
    weights = {ours: torch.cat([tensors[name] for name in names]) for ours, names in where.items()}
    weights |= {ours: weight.flatten(0, -2) for ours, weight in weights.items() if ".axial." in ours}
    for name, wanted in model.state_dict().items():
        if weights[name].shape != wanted.shape:
            raise UserError(f"{source}: {' + '.join(where[name])} is {list(weights[name].shape)}, where its config.json "
                           f"promises {list(wanted.shape)}")  # fmt: skip
    model.load_state_dict(weights)
    return ConvertedModel(model.eval(), None, unmatched, []), [folder / "config.json", *files]


@torch.inference_mode()
def check_parity(model: Model, folder: Path) -> dict[str, float]:
    """How far transformers' answers lie apart, text by text and with our hashes; refused if by more than rounding."""
    mixer, words = model.config.encoder.mixer, "words" in model.config.heads
    assert isinstance(mixer, ReformerChunked)
    name = "ReformerModel" if not words else "ReformerModelWithLMHead" if mixer.causal else "ReformerForMaskedLM"
    peer, found = load_hf_model(folder, name), dict[str, float]()
    for module in peer.modules():
        if hasattr(module, "hash_seed"):
            module.hash_seed = mixer.seed
            module.num_buckets = mixer.buckets if isinstance(mixer.buckets, int) else list(mixer.buckets)
    multiple = lcm(mixer.near.chunk, mixer.hashed.chunk)
    for length in {min(model.config.encoder.positions, many) for many in (multiple, 4 * multiple)}:
        tokens = 1 + torch.arange(length) * 7 % (model.config.vocabulary - 1)
        body = peer.reformer if words else peer
        wanted, hidden = (
            body(tokens[None], use_cache=False).last_hidden_state[0],
            model(Inputs(tokens, Layout.from_lengths([length]))),
        )
        pairs = {"hidden": (hidden, wanted)}
        if words:  # transformers 5 reads the numbers beside the table, and leaves them out
            beside = peer.lm_head.bias if peer.lm_head.decoder.bias is None else 0.0
            pairs["words"] = (model.compute_logits("words", hidden), peer.lm_head(wanted[None])[0] + beside)
        for part, (ours, theirs) in pairs.items():
            found[part] = max(found.get(part, 0.0), float((ours - theirs).abs().max()))
    if bad := {part: value for part, value in found.items() if not value < TOLERANCE}:
        raise UserError(f"{folder}: transformers' {name} gives other answers, apart by {bad}; nothing is written")
    return found


def _read_config(folder: Path) -> dict[str, Any]:
    """With what transformers takes for granted."""
    given = {"is_decoder": False, "hash_seed": None, "num_buckets": None, "num_hashes": 1, "axial_pos_embds": True,
             "chunk_size_feed_forward": 0, "hidden_act": "relu", "layer_norm_eps": 1e-12, "initializer_range": 0.02,
             "hidden_dropout_prob": 0.05}  # fmt: skip
    for kind in ("local", "lsh"):
        given |= {f"{kind}_num_chunks_before": 1, f"{kind}_num_chunks_after": 0, f"{kind}_attn_chunk_length": 64}
        given[f"{kind}_attention_probs_dropout_prob"] = 0.0
    told: dict[str, Any] = read_json(folder / "config.json")
    return {**given, **told}


def _build_encoder_config(config: dict[str, Any], source: str) -> EncoderConfig:
    try:
        activation, layers = ACTIVATIONS[config["hidden_act"]], [LAYER_KINDS[kind] for kind in config["attn_layers"]]
        shape = list(config["axial_pos_shape"]) if config["axial_pos_embds"] else []
        table = {"shape": shape, "widths": list(config["axial_pos_embds_dim"])} if shape else True
        longest = min(config["max_position_embeddings"], prod(shape) if shape else config["max_position_embeddings"])
        fed = {"inner": config["feed_forward_size"], "activation": activation}
        values = {
            "layers": len(layers), "width": 2 * config["hidden_size"], "embedding": config["hidden_size"],
            "reversible": "halves", "norm": "before", "segments": 0, "embedding_norm": False, "pooler": "none",
            "positions": longest, "table": table, "dropout": config["hidden_dropout_prob"], "eps": config["layer_norm_eps"],
            "deviation": config["initializer_range"],
            "feedforward": fed | ({"chunk": config["chunk_size_feed_forward"]} if config["chunk_size_feed_forward"] else {}),
            "mixer": _mixer_values(config, layers, longest),
        }  # fmt: skip
    except (KeyError, TypeError) as error:
        raise UserError(f"{source}: config.json is not that of a whole Reformer that this model can be: {error}") from None
    try:
        return from_dict(EncoderConfig, values, source)
    except RecipeError as error:
        raise UserError(str(error)) from None


def _mixer_values(config: dict[str, Any], layers: list[str], max_length: int) -> dict[str, Any]:
    words = {"chunk": "attn_chunk_length", "before": "num_chunks_before", "after": "num_chunks_after",
             "dropout": "attention_probs_dropout_prob"}  # fmt: skip
    parts = {ours: {key: config[f"{kind}_{word}"] for key, word in words.items()} for kind, ours in LAYER_KINDS.items()}
    return {
        "kind": "chunked", "heads": config["num_attention_heads"], "size": config["attention_head_size"], "layers": layers,
        "buckets": config["num_buckets"] or _default_num_buckets(max_length, parts["hashed"]["chunk"]), "rounds": config["num_hashes"],
        "seed": config["hash_seed"] or 0, "causal": config["is_decoder"], **parts,
    }  # fmt: skip


def _default_num_buckets(max_length: int, chunk_length: int) -> int | list[int]:
    """Where a config says nothing, transformers takes two for a chunk of the first text it sees; here, of the longest."""
    power = max(1, (2 * (max_length // chunk_length)).bit_length() - 1)
    few = 2 * max(int((max_length // chunk_length) ** 0.5), chunk_length)
    return 2**power if 2**power <= few else [2 ** (power // 2), 2 ** (power - power // 2)]


def _build_name_map(encoder: EncoderConfig, has_lm_head: bool) -> dict[str, tuple[str, ...]]:
    """Each tensor of ours to those of theirs that it is made of, one below another."""
    assert isinstance(encoder.mixer, ReformerChunked)
    found: dict[str, tuple[str, ...]] = {"encoder.tokens.weight": ("embeddings.word_embeddings.weight",)}
    modules = {"encoder.stack.norm": "encoder.layer_norm"}
    if encoder.table is True:
        found["encoder.positions.weight"] = ("embeddings.position_embeddings.embedding.weight",)
    else:
        axes = range(len(encoder.table.shape))  # type: ignore[union-attr]
        found |= {f"encoder.axial.axes.{n}.weight": (f"embeddings.position_embeddings.weights.{n}",) for n in axes}
    for number, kind in enumerate(encoder.mixer.layers):
        mine, start = f"encoder.stack.blocks.{number}", f"encoder.layers.{number}"
        modules |= {f"{mine}.{ours}": f"{start}.{theirs}" for ours, theirs in BLOCK_MODULES.items()}
        asked = ("query", "key", "value") if kind == "near" else ("query_key", "value")
        found[f"{mine}.mixer.project.weight"] = tuple(f"{start}.attention.self_attention.{name}.weight" for name in asked)
    for ours, theirs in modules.items():
        parts = ("weight",) if ours.endswith("mixer.out") else ("weight", "bias")
        found |= {f"{ours}.{part}": (f"{theirs}.{part}",) for part in parts}
    return found | ({"heads.words.table.weight": (LM_HEAD_WEIGHT,), "heads.words.bias": (LM_HEAD_BIAS,)} if has_lm_head else {})
