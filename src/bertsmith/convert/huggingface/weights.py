"""The weights of a Hugging Face folder, whichever of its four ways of keeping them it has."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import tensors
from ...artifacts import read_json
from ...errors import UserError
from .names import Architecture, Family

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
UNSUPPORTED_FILES = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax", "model.onnx": "ONNX"}


def find_weight_files(folder: Path) -> list[Path]:
    """The files the weights lie in: safetensors before .bin, one before several."""
    way = next((name for name in WEIGHT_FILES if (folder / name).exists()), None)
    if way is None:
        other = next((kind for name, kind in UNSUPPORTED_FILES.items() if (folder / name).exists()), None)
        told = f"only weights for {other}; save it again with transformers' save_pretrained" if other else "no weights"
        raise UserError(f"{folder} holds {told}; looked for {', '.join(WEIGHT_FILES)}")
    return _list_shards(folder, way) if way.endswith(".json") else [folder / way]


def read_weights(files: list[Path]) -> dict[str, Tensor]:
    """Every tensor by the name it has there."""
    out: dict[str, Tensor] = {}
    for file in files:
        out |= _load_pickle(file) if file.suffix == ".bin" else tensors.load_tensors(file)
    return out


def _list_shards(folder: Path, index: str) -> list[Path]:
    told = read_json(folder / index)
    names = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(names, dict) or not names:
        raise UserError(f"{folder / index} does not say which tensor lies where (weight_map)")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix not in (".safetensors", ".bin"):
            raise UserError(f"{folder / index} names {name!r}, which is no file of weights in its folder")
    files = [folder / name for name in sorted(set(names.values()))]
    if missing := [file.name for file in files if not file.exists()]:
        raise UserError(f"{folder} lacks {', '.join(missing)}, which {index} names; download it again")
    return files


def _load_pickle(file: Path) -> dict[str, Tensor]:
    """A .bin is a pickle: only tensors are let out of it, no code runs."""
    try:
        held: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises anything at all
        cause = str(error).strip().split("\n")[0][:200]
        raise UserError(f"{file} cannot be read as tensors alone: {cause}; save it again as safetensors, with transformers' "
                       "save_pretrained") from None  # fmt: skip
    if not isinstance(held, dict) or not all(isinstance(name, str) and isinstance(t, Tensor) for name, t in held.items()):
        raise UserError(f"{file} holds other things than tensors by name; save the model's state_dict alone")
    return held


NameMap = dict[str, tuple[str, ...]]


def build_name_map(
    family: Family, architecture: Architecture, num_blocks: int, pooler_module: str | None, has_projection: bool
) -> NameMap:
    """Each tensor of ours to those of theirs it is made of, one below another."""
    found: NameMap
    found = {f"encoder.{ours}.weight": (f"{family.prefix}{theirs}.weight",) for ours, theirs in family.embeddings.items()}
    modules: NameMap = {}
    for ours, theirs in family.modules.items():
        if ours != "widen" or has_projection:
            modules[f"encoder.{ours}"] = (family.prefix + theirs,)
    for number in range(num_blocks):
        start = family.prefix + family.block_prefix.format(number)
        for ours, names in family.block_modules.items():
            modules[f"encoder.stack.blocks.{number}.{ours}"] = tuple(start + name for name in names)
    if pooler_module:
        modules["encoder.pooler"] = (pooler_module,)
    for head in architecture.heads:
        for ours, theirs in ({"score": architecture.score_module} if head == "task" else family.head_modules[head]).items():
            (found if ours == "bias" else modules)[f"heads.{head}.{ours}"] = (theirs,)
    for ours, names in modules.items():
        found |= {f"{ours}.{part}": tuple(f"{name}.{part}" for name in names) for part in ("weight", "bias")}
    return found


def has_head(family: Family, head: str, tensors: Iterable[str]) -> bool:
    """Something of a head of pre-training is there."""
    own = tuple(f"{name}." for ours, name in family.head_modules[head].items() if ours != "bias")
    return any(name.startswith(own) for name in tensors)


def normalize_name(family: Family, name: str) -> str | None:
    """A name as today's files have it: old names of norms, encoders saved alone; None for what is no weight."""
    if re.search(family.buffer_pattern, name):
        return None
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return family.prefix + name if name.startswith(family.root_prefixes) else name


TF_SUFFIXES = {"output_weights": "weight", "output_bias": "bias", "kernel": "weight", "gamma": "weight", "beta": "bias"}
OPTIMIZER_SLOTS = r"/(adam_[mv]|Adam(_1)?|lamb_[mv])$|^(global_step|beta[12]_power)$"


def tf_to_hf_name(name: str) -> str | None:
    """A variable of Google's BERT by the name Hugging Face gives it; None for what only its optimizer needs."""
    if re.search(OPTIMIZER_SLOTS, name):
        return None
    name = re.sub(r"\blayer_(\d+)\b", r"layer.\1", name).replace("/", ".")
    name = re.sub(r"(_embeddings)$", r"\1.weight", name)
    return re.sub(r"\.(output_weights|output_bias|kernel|gamma|beta)$", lambda end: f".{TF_SUFFIXES[end[1]]}", name)
