"""A model's folder: config, weights in safetensors (sharded above a size), tokenizer and card, sealed by checksums."""

from pathlib import Path
from typing import Any

from torch import Tensor

from .. import tensors
from ..artifacts import MANIFEST, new_folder, read_json, verify, write_json
from ..config import parse, plain
from ..errors import BadInput
from ..tokenization.tokenizer import Tokenizer
from .int8 import STORED, expanded, packed
from .model import Model, ModelConfig

SHARD = 2 << 30  # bytes
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def save(folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], record: dict[str, Any]) -> None:
    """The whole folder or nothing; `record` is what made the model, beside what it is."""
    with new_folder(folder) as part:
        write(part, model, tokenizer, card, record)


def write(
    folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], record: dict[str, Any], small: bool = False
) -> None:
    """`small` stores the weights packed, and says so in config.json; `load` reads either."""
    told = {name: value for name, value in record.items() if name != "weights"} | ({"weights": STORED} if small else {})
    write_json(folder / "config.json", {"model": plain(model.config), **told})
    write_json(folder / "card.json", card)
    tokenizer.save(folder)
    save_weights(folder, packed(model.state_dict()) if small else model.state_dict())


def save_weights(folder: Path, weights: dict[str, Tensor], limit: int = SHARD) -> None:
    """One file, or several and an index of which tensor is where."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    shards = _shards(weights, limit)
    if len(shards) == 1:
        tensors.save(weights, folder / WEIGHTS)
        return
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors.save({name: weights[name] for name in shard}, folder / file)
        names |= dict.fromkeys(shard, file)
    write_json(folder / INDEX, {"weight_map": names})


def load(folder: Path, check: bool = True) -> tuple[Model, Tokenizer, dict[str, Any]]:
    """The model ready to answer, its tokenizer and its card."""
    if not (folder / "config.json").exists():
        busy = (folder / "state").exists()
        hint = "its training has not ended: run the same command again" if busy else "`pretrain` makes one"
        if folder.is_file():
            hint = f"if it holds vectors of words, `bertsmith import source={folder} out=...` makes one of them"
        raise BadInput(f"{folder} holds no model; {hint}")
    if check and (folder / MANIFEST).exists():
        verify(folder)
    config = parse(ModelConfig, recorded(folder)["model"], str(folder / "config.json"))
    model = Model(config, drawn=False)
    _strictly(model, load_weights(folder), folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    model.meet(tokenizer)
    return model.eval(), tokenizer, read_json(folder / "card.json")


def recorded(folder: Path) -> dict[str, Any]:
    """What the config.json of a folder says; one that others made, Hugging Face say, is refused."""
    record = read_json(folder / "config.json")
    if not isinstance(record, dict) or not isinstance(record.get("model"), dict):
        raise BadInput(
            f"{folder} is not a folder that bertsmith made; `bertsmith import source={folder} out=...` makes one of a "
            "Hugging Face folder"
        )
    return record


def load_weights(folder: Path) -> dict[str, Tensor]:
    """By name; packed ones expanded to float32."""
    how = recorded(folder).get("weights")
    if how not in (None, STORED):
        raise BadInput(f"{folder / 'config.json'} says that weights are stored as {how}, which this bertsmith does not know")
    return expanded(stored(folder), folder) if how else stored(folder)


def stored(folder: Path) -> dict[str, Tensor]:
    """The tensors of the files as they are."""
    files = sorted(set(read_json(folder / INDEX)["weight_map"].values())) if (folder / INDEX).exists() else [WEIGHTS]
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= tensors.load(folder / file)
    return weights


def _shards(weights: dict[str, Tensor], limit: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _strictly(model: Model, weights: dict[str, Tensor], folder: Path) -> None:
    for name, wanted in model.state_dict().items():
        if name in weights and weights[name].shape != wanted.shape:
            raise BadInput(f"{folder} does not fit its config.json: {name} is {list(weights[name].shape)}, not "
                           f"{list(wanted.shape)}")  # fmt: skip
    found = model.load_state_dict(weights, strict=False)
    if found.missing_keys or found.unexpected_keys:
        raise BadInput(
            f"{folder} does not fit its config.json: missing {found.missing_keys}, not known {found.unexpected_keys}"
        )
