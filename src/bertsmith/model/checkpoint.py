"""A model's folder: config, weights in safetensors (sharded above a size), tokenizer and card, sealed by checksums."""

from pathlib import Path
from typing import Any

from torch import Tensor

from .. import tensors
from ..artifacts import MANIFEST, atomic_folder, read_json, verify_manifest, write_json
from ..config import from_dict, to_dict
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .int8 import INT8_FORMAT, dequantize_weights, quantize_weights
from .model import Model, ModelConfig

MAX_SHARD_SIZE = 2 << 30  # bytes
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"


def save(folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], provenance: dict[str, Any]) -> None:
    """The whole folder or nothing; `record` is what made the model, beside what it is."""
    with atomic_folder(folder) as part:
        write_files(part, model, tokenizer, card, provenance)


def write_files(
    folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], provenance: dict[str, Any], as_int8: bool = False
) -> None:
    """`small` stores the weights packed, and says so in config.json; `load` reads either."""
    told = {name: value for name, value in provenance.items() if name != "weights"} | (
        {"weights": INT8_FORMAT} if as_int8 else {}
    )
    write_json(folder / "config.json", {"model": to_dict(model.config), **told})
    write_json(folder / "card.json", card)
    tokenizer.save(folder)
    save_weights(folder, quantize_weights(model.state_dict()) if as_int8 else model.state_dict())


def save_weights(folder: Path, weights: dict[str, Tensor], max_shard_size: int = MAX_SHARD_SIZE) -> None:
    """One file, or several and an index of which tensor is where."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    shards = _split_into_shards(weights, max_shard_size)
    if len(shards) == 1:
        tensors.save_tensors(weights, folder / WEIGHTS_FILE)
        return
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors.save_tensors({name: weights[name] for name in shard}, folder / file)
        names |= dict.fromkeys(shard, file)
    write_json(folder / WEIGHTS_INDEX_FILE, {"weight_map": names})


def load(folder: Path, verify_checksums: bool = True) -> tuple[Model, Tokenizer, dict[str, Any]]:
    """The model ready to answer, its tokenizer and its card."""
    if not (folder / "config.json").exists():
        busy = (folder / "state").exists()
        hint = "its training has not ended: run the same command again" if busy else "`pretrain` makes one"
        if folder.is_file():
            hint = f"if it holds vectors of words, `bertsmith import source={folder} out=...` makes one of them"
        raise UserError(f"{folder} holds no model; {hint}")
    if verify_checksums and (folder / MANIFEST).exists():
        verify_manifest(folder)
    config = from_dict(ModelConfig, read_config(folder)["model"], str(folder / "config.json"))
    model = Model(config, init_weights=False)
    _load_strict(model, load_weights(folder), folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    model.attach_tokenizer(tokenizer)
    return model.eval(), tokenizer, read_json(folder / "card.json")


def read_config(folder: Path) -> dict[str, Any]:
    """What the config.json of a folder says; one that others made, Hugging Face say, is refused."""
    record = read_json(folder / "config.json")
    if not isinstance(record, dict) or not isinstance(record.get("model"), dict):
        raise UserError(
            f"{folder} is not a folder that bertsmith made; `bertsmith import source={folder} out=...` makes one of a "
            "Hugging Face folder"
        )
    return record


def load_weights(folder: Path) -> dict[str, Tensor]:
    """By name; packed ones expanded to float32."""
    how = read_config(folder).get("weights")
    if how not in (None, INT8_FORMAT):
        raise UserError(f"{folder / 'config.json'} says that weights are stored as {how}, which this bertsmith does not know")
    return dequantize_weights(read_tensors(folder), folder) if how else read_tensors(folder)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of the files as they are."""
    files = (
        sorted(set(read_json(folder / WEIGHTS_INDEX_FILE)["weight_map"].values()))
        if (folder / WEIGHTS_INDEX_FILE).exists()
        else [WEIGHTS_FILE]
    )
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= tensors.load_tensors(folder / file)
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
    for name, wanted in model.state_dict().items():
        if name in weights and weights[name].shape != wanted.shape:
            raise UserError(f"{folder} does not fit its config.json: {name} is {list(weights[name].shape)}, not "
                           f"{list(wanted.shape)}")  # fmt: skip
    found = model.load_state_dict(weights, strict=False)
    if found.missing_keys or found.unexpected_keys:
        raise UserError(
            f"{folder} does not fit its config.json: missing {found.missing_keys}, not known {found.unexpected_keys}"
        )
