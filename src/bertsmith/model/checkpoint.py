"""Model folders: config.json, safetensors weights (sharded above 2 GiB), tokenizer and card.json, with checksums."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import tensors
from ..artifacts import MANIFEST, atomic_folder, read_json, verify_manifest
from ..config import from_dict, to_dict
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from ..writing import write_json
from .folder import (
    FORMAT_VERSION,
    INT8_FORMAT,
    WEIGHTS_FILE,
    WEIGHTS_INDEX_FILE,
    list_weight_files,
    read_config,
    stores_int8,
)
from .int8 import dequantize_weights, quantize_weights
from .model import Model, ModelConfig

MAX_SHARD_SIZE = 2 << 30  # bytes


def save(folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write a model folder atomically; `provenance` (how the model was made) goes into config.json beside the model config."""
    with atomic_folder(folder) as staging:
        write_files(staging, model, tokenizer, card, provenance)


def write_files(
    folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], provenance: dict[str, Any], as_int8: bool = False
) -> None:
    """Write the files of a model folder. `as_int8` stores int8 weights and marks them in config.json; `load` reads both."""
    recorded = {name: value for name, value in provenance.items() if name not in ("weights", "format_version")} | (
        {"weights": INT8_FORMAT} if as_int8 else {}
    )
    version = ".".join(map(str, FORMAT_VERSION))
    write_json(folder / "config.json", {"format_version": version, "model": to_dict(model.config), **recorded})
    write_json(folder / "card.json", card)
    tokenizer.save(folder)
    save_weights(folder, quantize_weights(model.state_dict()) if as_int8 else model.state_dict())


def model_writer(model: Model, tokenizer: Tokenizer) -> Callable[[Path, dict[str, Any], dict[str, Any]], None]:
    """`write_files` of this model, given folder, card and provenance, for `runs.Run.publish`."""

    def write(folder: Path, card: dict[str, Any], provenance: dict[str, Any]) -> None:
        write_files(folder, model, tokenizer, card, provenance | {"tokenizer_fingerprint": tokenizer.fingerprint})

    return write


def save_weights(folder: Path, weights: dict[str, Tensor], max_shard_size: int = MAX_SHARD_SIZE) -> None:
    """Write one safetensors file, or several shards and an index (`weight_map`: tensor name -> file)."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    shards = _split_into_shards(weights, max_shard_size)
    if len(shards) == 1:
        tensors.save_tensors(weights, folder / WEIGHTS_FILE)
        return
    weight_map: dict[str, str] = {}
    for shard_number, shard in enumerate(shards, start=1):
        file = f"model-{shard_number:05d}-of-{len(shards):05d}.safetensors"
        tensors.save_tensors({name: weights[name] for name in shard}, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    write_json(folder / WEIGHTS_INDEX_FILE, {"weight_map": weight_map})


def load(folder: Path, verify_checksums: bool = True) -> tuple[Model, Tokenizer, dict[str, Any]]:
    """The model in eval mode, its tokenizer and its card."""
    record = read_config(folder)
    if verify_checksums and (folder / MANIFEST).exists():
        verify_manifest(folder)
    config = from_dict(ModelConfig, record["model"], str(folder / "config.json"))
    tokenizer = config.encoder.open_vocabulary(Tokenizer.load(folder / "tokenizer.json"))
    with torch.random.fork_rng(devices=[]):  # torch's layers draw the weights that are loaded next
        model = Model(config, tokenizer, init_weights=False)
    _load_strict(model, load_weights(folder), folder)
    return model.eval(), tokenizer, read_json(folder / "card.json")


def load_weights(folder: Path) -> dict[str, Tensor]:
    """State dict of the folder; int8 weights are dequantized to float32."""
    is_int8 = stores_int8(read_config(folder), folder)
    return dequantize_weights(read_tensors(folder), folder) if is_int8 else read_tensors(folder)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Tensors of all weight files as stored, by name."""
    weights: dict[str, Tensor] = {}
    for path in list_weight_files(folder):
        weights |= tensors.load_tensors(path)
    return weights


def _split_into_shards(weights: dict[str, Tensor], max_shard_size: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > max_shard_size:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _load_strict(model: Model, weights: dict[str, Tensor], folder: Path) -> None:
    for name, expected in model.state_dict().items():
        if name in weights and weights[name].shape != expected.shape:
            raise UserError(f"{folder} does not match its config.json: {name} has shape {list(weights[name].shape)}, "
                           f"not {list(expected.shape)}")  # fmt: skip
    result = model.load_state_dict(weights, strict=False)
    if result.missing_keys or result.unexpected_keys:
        raise UserError(
            f"{folder} does not match its config.json: missing keys {result.missing_keys}, unexpected keys "
            f"{result.unexpected_keys}"
        )
