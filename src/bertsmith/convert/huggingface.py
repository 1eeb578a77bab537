"""Hugging Face folders in and out."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import tensors
from ..artifacts import read_json, write_json
from ..errors import BadInput
from ..model.checkpoint import INDEX, SHARD, save_weights
from ..model.model import Model
from ..text.tokenizer import Tokenizer
from . import vocabulary
from .configs import chosen, family_of, fits, skipped, theirs
from .files import read_weights, weight_files
from .fit import POSITIONS, SEGMENTS, Fitted, fitted, unfitted
from .names import BERT, Family

REST = "rest.safetensors"  # in our folder: what the source held and no model of ours needs, kept for the way back


def read(folder: Path, dropout: float = 0.0) -> tuple[Family, Fitted, list[Path]]:
    """The model in a folder, with that much dropout on attention, and the files it was read from."""
    config = read_json(folder / "config.json")
    family = family_of(config, str(folder / "config.json"))
    files = weight_files(folder)
    config[family.sizes["mixer.dropout"]] = dropout
    return family, fitted(family, config, read_weights(files), str(folder)), [folder / "config.json", *files]


def write(
    folder: Path, model: Model, tokenizer: Tokenizer, kind: str | None, rest: dict[str, Tensor], limit: int = SHARD
) -> str:
    """Our model as a folder transformers loads with nothing missing and nothing left over; gives its class there."""
    family = family_for(model, kind)
    architecture = class_of(family, model)
    encoder, special = model.config.encoder, {"pad": tokenizer.pad, "cls": tokenizer.cls, "sep": tokenizer.sep}
    if POSITIONS in rest:
        special["pad"] = len(rest[POSITIONS]) - 1  # positions begin after it, whatever the tokenizer says
    config = theirs(family, encoder, model.config.vocabulary, special, architecture)
    write_json(folder / "config.json", config)
    vocabulary.written(folder, tokenizer, encoder.positions, encoder.segments)
    weights = unfitted(family, model, architecture, skipped(family, config, str(folder)), rest)
    save_weights(folder, weights, limit)
    if (folder / INDEX).exists():  # transformers will not read one without
        size = {"total_size": sum(weight.nbytes for weight in weights.values())}
        write_json(folder / INDEX, {"metadata": size, **read_json(folder / INDEX)})
    return architecture


def family_for(model: Model, kind: str | None) -> Family:
    """The family it came from, if it can still say all of the model; else BERT."""
    family = chosen(kind)
    segments = "segments" in family.tables or not model.state_dict()[SEGMENTS].any()
    return family if fits(family, model.config.encoder) and segments and _heads(model) in family.classes else BERT


def class_of(family: Family, model: Model) -> str:
    heads = _heads(model)
    if heads not in family.classes:
        known = ", ".join(sorted({head for names in family.classes for head in names}))
        raise BadInput(
            f"this model has the heads {', '.join(heads)}; Hugging Face's {family.kind} has a place for {known} only"
        )
    if "next" in heads and model.state_dict()["heads.next.score.weight"].shape[0] != 2:
        raise BadInput("this model's head `next` has other than two labels, which Hugging Face's has not")
    return family.classes[heads]


def identical(folder: Path, model: Model, architecture: str) -> None:
    """Reads a folder just written back: every weight it should hold is there bit for bit, or an error names one."""
    family, back, _ = read(folder)
    held, ours = back.model.state_dict(), model.state_dict()
    for name, weight in ours.items():
        left_out = name.startswith("encoder.pooler.") and architecture not in family.pooled
        if not left_out and not torch.equal(weight, held[name]):
            raise BadInput(f"{folder}: {name} came back changed; it is not written")


def kept(folder: Path) -> tuple[str | None, dict[str, Tensor]]:
    """What a checkpoint folder of ours says of its source: the family, and the rest."""
    record: dict[str, Any] = read_json(folder / "config.json")
    rest = tensors.load(folder / REST) if (folder / REST).exists() else {}
    return record.get("family"), rest


def _heads(model: Model) -> tuple[str, ...]:
    return tuple(sorted(model.config.heads))
