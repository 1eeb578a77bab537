"""The weights of a Hugging Face folder, whichever of its four ways of keeping them it has."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import tensors
from ...artifacts import read_json
from ...errors import BadInput
from .names import Family, Form

WAYS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
OTHERS = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax", "model.onnx": "ONNX"}


def weight_files(folder: Path) -> list[Path]:
    """The files the weights lie in: safetensors before .bin, one before several."""
    way = next((name for name in WAYS if (folder / name).exists()), None)
    if way is None:
        other = next((kind for name, kind in OTHERS.items() if (folder / name).exists()), None)
        told = f"only weights for {other}; save it again with transformers' save_pretrained" if other else "no weights"
        raise BadInput(f"{folder} holds {told}; looked for {', '.join(WAYS)}")
    return _shards(folder, way) if way.endswith(".json") else [folder / way]


def read_weights(files: list[Path]) -> dict[str, Tensor]:
    """Every tensor by the name it has there."""
    out: dict[str, Tensor] = {}
    for file in files:
        out |= _pickled(file) if file.suffix == ".bin" else tensors.load(file)
    return out


def _shards(folder: Path, index: str) -> list[Path]:
    told = read_json(folder / index)
    names = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(names, dict) or not names:
        raise BadInput(f"{folder / index} does not say which tensor lies where (weight_map)")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix not in (".safetensors", ".bin"):
            raise BadInput(f"{folder / index} names {name!r}, which is no file of weights in its folder")
    files = [folder / name for name in sorted(set(names.values()))]
    if missing := [file.name for file in files if not file.exists()]:
        raise BadInput(f"{folder} lacks {', '.join(missing)}, which {index} names; download it again")
    return files


def _pickled(file: Path) -> dict[str, Tensor]:
    """A .bin is a pickle: only tensors are let out of it, no code runs."""
    try:
        held: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises anything at all
        cause = str(error).strip().split("\n")[0][:200]
        raise BadInput(f"{file} cannot be read as tensors alone: {cause}; save it again as safetensors, with transformers' "
                       "save_pretrained") from None  # fmt: skip
    if not isinstance(held, dict) or not all(isinstance(name, str) and isinstance(t, Tensor) for name, t in held.items()):
        raise BadInput(f"{file} holds other things than tensors by name; save the model's state_dict alone")
    return held


Places = dict[str, tuple[str, ...]]


def places(family: Family, form: Form, blocks: int, pooler: str | None, widened: bool) -> Places:
    """Each tensor of ours to those of theirs it is made of, one below another."""
    found: Places
    found = {f"encoder.{ours}.weight": (f"{family.prefix}{theirs}.weight",) for ours, theirs in family.tables.items()}
    modules: Places = {}
    for ours, theirs in family.layers.items():
        if ours != "widen" or widened:
            modules[f"encoder.{ours}"] = (family.prefix + theirs,)
    for number in range(blocks):
        start = family.prefix + family.block.format(number)
        for ours, names in family.blocks.items():
            modules[f"encoder.stack.blocks.{number}.{ours}"] = tuple(start + name for name in names)
    if pooler:
        modules["encoder.pooler"] = (pooler,)
    for head in form.heads:
        for ours, theirs in ({"score": form.score} if head == "task" else family.heads[head]).items():
            (found if ours == "bias" else modules)[f"heads.{head}.{ours}"] = (theirs,)
    for ours, names in modules.items():
        found |= {f"{ours}.{part}": tuple(f"{name}.{part}" for name in names) for part in ("weight", "bias")}
    return found


def present(family: Family, head: str, tensors: Iterable[str]) -> bool:
    """Something of a head of pre-training is there."""
    own = tuple(f"{name}." for ours, name in family.heads[head].items() if ours != "bias")
    return any(name.startswith(own) for name in tensors)


def normal(family: Family, name: str) -> str | None:
    """A name as today's files have it: old names of norms, encoders saved alone; None for what is no weight."""
    if re.search(family.buffers, name):
        return None
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return family.prefix + name if name.startswith(family.roots) else name


GOOGLE = {"output_weights": "weight", "output_bias": "bias", "kernel": "weight", "gamma": "weight", "beta": "bias"}
SLOTS = r"/(adam_[mv]|Adam(_1)?|lamb_[mv])$|^(global_step|beta[12]_power)$"


def from_google(name: str) -> str | None:
    """A variable of Google's BERT by the name Hugging Face gives it; None for what only its optimizer needs."""
    if re.search(SLOTS, name):
        return None
    name = re.sub(r"\blayer_(\d+)\b", r"layer.\1", name).replace("/", ".")
    name = re.sub(r"(_embeddings)$", r"\1.weight", name)
    return re.sub(r"\.(output_weights|output_bias|kernel|gamma|beta)$", lambda end: f".{GOOGLE[end[1]]}", name)
