"""Model folders: config.json, safetensors weights (sharded above 2 GiB), tokenizer and card.json, with checksums."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import tensors
from ..artifacts import atomic_folder, read_object, verify_if_sealed
from ..config import from_dict, to_dict
from ..pretrained import shipped
from ..tokenization.tokenizer import Tokenizer
from ..writing import write_json
from .adapter import A_SUFFIX, ADAPTER_FILE, BASE_PREFIX, hash_weights, is_adapter
from .building import build_for_weights
from .folder import (
    FORMAT_VERSION,
    INT8_FORMAT,
    QUANTIZED_FORMAT,
    WEIGHTS_FILE,
    WEIGHTS_INDEX_FILE,
    list_weight_files,
    read_arrays,
    read_config,
    read_shapes,
    stores_int8,
)
from .int8 import dequantize_weights, quantize_weights
from .lora import LoraUpdate
from .model import Model, ModelConfig

STORAGE_KEYS = ("weights", "adapter", "format_version")  # of config.json, that say how a folder stores the weights
MAX_SHARD_SIZE = 2 << 30  # bytes


def save(folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write a model folder atomically; `provenance` (how the model was made) goes into config.json beside the model config."""
    with atomic_folder(folder) as staging:
        write_files(staging, model, tokenizer, card, provenance)


def write_files(
    folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], provenance: dict[str, Any], as_int8: bool = False,
    quantized: dict[str, Tensor] | None = None,
) -> None:  # fmt: skip
    """Write the files of a model folder. `as_int8` stores int8 weights and marks them in config.json; `load` reads both.

    quantized: the weights as `quantize` stores them, in place of the model's
    """
    weight_format = QUANTIZED_FORMAT if quantized is not None else INT8_FORMAT if as_int8 else None
    _write_records(folder, model, tokenizer, card, provenance, {"weights": weight_format} if weight_format else {})
    if quantized is None:
        quantized = quantize_weights(model.state_dict()) if as_int8 else model.state_dict()
    save_weights(folder, quantized)


def _write_records(
    folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], provenance: dict[str, Any], storage: dict[str, Any]
) -> None:
    """config.json, card.json and tokenizer.json; `storage` says how the weights are stored."""
    recorded = {name: value for name, value in provenance.items() if name not in STORAGE_KEYS} | storage
    version = ".".join(map(str, FORMAT_VERSION))
    write_json(folder / "config.json", {"format_version": version, "model": to_dict(model.config), **recorded})
    write_json(folder / "card.json", card)
    tokenizer.save(folder)


def adapter_writer(
    model: Model, tokenizer: Tokenizer, update: LoraUpdate, base: Path
) -> Callable[[Path, dict[str, Any], dict[str, Any]], None]:
    """As `model_writer`, of an adapter of the model in `base`: `update`, and the weights that differ from the base's."""

    def write(folder: Path, card: dict[str, Any], provenance: dict[str, Any]) -> None:
        base_weights, weights = load_weights(base), dict(update.tensors)
        for name, weight in model.state_dict().items():
            is_same = name.startswith(BASE_PREFIX) and name in base_weights and torch.equal(weight.cpu(), base_weights[name])
            if not is_same and name + A_SUFFIX not in weights:
                weight = weight.detach().cpu().contiguous()
                weights[name] = half if torch.equal((half := weight.half()).float(), weight) else weight
        name = base.name if shipped.find_folder(base.name) == base else os.path.relpath(base.absolute(), folder.absolute())
        values = {"base": name, "base_sha256": hash_weights(list_weight_files(base)), "scaling": update.scaling}
        provenance = provenance | {"tokenizer_fingerprint": tokenizer.fingerprint}
        _write_records(folder, model, tokenizer, card, provenance, {"adapter": values})
        tensors.save_tensors(weights, folder / ADAPTER_FILE)

    return write


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
    read_config(folder)  # of another kind of folder, or a newer version, before anything is read
    if verify_checksums:
        verify_if_sealed(folder)
    config = read_model_config(folder)
    tokenizer = config.encoder.open_vocabulary(Tokenizer.load(folder / "tokenizer.json"))
    model = build_for_weights(config, tokenizer, read_shapes(folder), folder)
    model.load_state_dict(load_weights(folder))
    return model.eval(), tokenizer, read_object(folder / "card.json")


def read_model_config(folder: Path) -> ModelConfig:
    """The model's part of config.json."""
    return from_dict(ModelConfig, read_config(folder)["model"], str(folder / "config.json"))


def load_weights(folder: Path) -> dict[str, Tensor]:
    """State dict of the folder; int8 weights are dequantized to float32, an adapter is merged into its base model's."""
    if is_adapter(folder):
        return {name: torch.from_numpy(array) for name, array in read_arrays(folder).items()}
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
