"""Weights files of Hugging Face folders (safetensors or .bin, single or sharded), and the mapping of tensor names."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import tensors
from ...artifacts import read_json
from ...errors import UserError
from ...reading import open_regular
from .family import Architecture, Family

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
UNSUPPORTED_FILES = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax", "model.onnx": "ONNX"}
TF_SUFFIXES = {"output_weights": "weight", "output_bias": "bias", "kernel": "weight", "gamma": "weight", "beta": "bias"}
OPTIMIZER_SLOTS = r"/(adam_[mv]|Adam(_1)?|lamb_[mv])$|^(global_step|beta[12]_power)$"

MIN_PICKLE_BYTES = 1 << 20  # that the tensors of a .bin may have whatever its size

NameMap = dict[str, tuple[str, ...]]  # our tensor name -> source tensors, concatenated along dim 0


def find_weight_files(folder: Path) -> list[Path]:
    """The weights files: safetensors before .bin, a single file before shards."""
    weights_file = next((name for name in WEIGHT_FILES if (folder / name).exists()), None)
    weights_file = weights_file or find_single_safetensors([path.name for path in folder.glob("*.safetensors")], str(folder))
    if weights_file is None:
        framework = next(
            (framework_name for name, framework_name in UNSUPPORTED_FILES.items() if (folder / name).exists()), None
        )
        problem = (
            f"only {framework} weights; save the model again with transformers' save_pretrained" if framework else "no weights"
        )
        raise UserError(f"{folder} contains {problem} (expected one of {', '.join(WEIGHT_FILES)})")
    return _list_shards(folder, weights_file) if weights_file.endswith(".json") else [folder / weights_file]


def read_weights(files: list[Path]) -> dict[str, Tensor]:
    """All tensors of the files, under their original names."""
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= _load_pickle(file) if file.suffix == ".bin" else tensors.load_tensors(file)
    return weights


def find_single_safetensors(names: Iterable[str], source: str) -> str | None:
    """The only .safetensors file, whatever its name; an error for several, or for an adapter, which is no model."""
    names = sorted(name for name in names if name.endswith(".safetensors"))
    if len(names) > 1:
        raise UserError(f"{source} has several .safetensors files ({', '.join(names)}) and no index; rename that of the "
                       f"model to {WEIGHT_FILES[0]}")  # fmt: skip
    if names == ["adapter_model.safetensors"]:
        raise UserError(f"{source} has only the weights of an adapter; merge it into its model with peft's merge_and_unload")
    return names[0] if names else None


def select_encoder_weights(family: Family, weights: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    """The weights under the names of a model of the family, where it is the module `key` of a larger one."""
    if not key or any(name.startswith(family.prefix + "embeddings.") for name in weights):
        return weights
    return {name.removeprefix(f"{key}."): tensor for name, tensor in weights.items()}


def build_name_map(
    family: Family, architecture: Architecture, num_blocks: int, pooler_module: str | None, has_projection: bool
) -> NameMap:
    """The name map of a model with `num_blocks` blocks (groups of blocks if they are shared) and the architecture's heads."""
    name_map: NameMap
    name_map = {f"encoder.{ours}.weight": (f"{family.prefix}{theirs}.weight",) for ours, theirs in family.embeddings.items()}
    modules: NameMap = {}
    for ours, theirs in family.modules.items():
        if ours != "embedding_projection" or has_projection:
            modules[f"encoder.{ours}"] = (family.prefix + theirs,)
    for i in range(num_blocks):
        block_prefix = family.prefix + family.block_prefix.format(i)
        for ours, names in family.block_modules.items():
            modules[f"encoder.stack.layers.{i}.{ours}"] = tuple(block_prefix + name for name in names)
    if pooler_module:
        modules["encoder.pooler"] = (pooler_module,)
    for head in architecture.heads:
        head_modules = family.head_modules.get(head, {})
        for ours, theirs in (
            {"classifier": architecture.score_module, **head_modules} if head == "task" else head_modules
        ).items():
            (name_map if ours == "bias" else modules)[f"heads.{head}.{ours}"] = (theirs,)
    for ours, names in modules.items():
        name_map |= {f"{ours}.{part}": tuple(f"{name}.{part}" for name in names) for part in ("weight", "bias")}
    return name_map


def has_head(family: Family, head: str, tensors: Iterable[str]) -> bool:
    """Whether there is a tensor of a pre-training head."""
    prefixes = tuple(f"{name}." for ours, name in family.head_modules[head].items() if ours != "bias")
    return any(name.startswith(prefixes) for name in tensors)


def normalize_name(family: Family, name: str) -> str | None:
    """A tensor name as in current files: LayerNorm's gamma and beta renamed, the prefix added; None for a buffer."""
    if re.search(family.buffer_pattern, name):
        return None
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return family.prefix + name if name.startswith(family.root_prefixes) else name


def tf_to_hf_name(name: str) -> str | None:
    """Hugging Face's name of a variable of Google's BERT; None for a variable of the optimizer."""
    if re.search(OPTIMIZER_SLOTS, name):
        return None
    name = re.sub(r"\blayer_(\d+)\b", r"layer.\1", name).replace("/", ".")
    name = re.sub(r"(_embeddings)$", r"\1.weight", name)
    return re.sub(r"\.(output_weights|output_bias|kernel|gamma|beta)$", lambda end: f".{TF_SUFFIXES[end[1]]}", name)


def _list_shards(folder: Path, index: str) -> list[Path]:
    index_values = read_json(folder / index)
    names = index_values.get("weight_map") if isinstance(index_values, dict) else None
    if not isinstance(names, dict) or not names:
        raise UserError(f"{folder / index} has no weight_map from tensors to files")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix not in (".safetensors", ".bin"):
            raise UserError(f"{folder / index} lists {name!r}, which is not a weights file in the same folder")
    files = [folder / name for name in sorted(set(names.values()))]
    if missing := [file.name for file in files if not file.exists()]:
        raise UserError(f"{folder} lacks {', '.join(missing)}, listed in {index}; download it again")
    return files


def _load_pickle(file: Path) -> dict[str, Tensor]:
    """Load a .bin, which is a pickle, with `weights_only`: no code runs."""
    try:
        with open_regular(file) as opened:
            state_dict: Any = torch.load(opened, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        cause = str(error).strip().split("\n")[0][:200]
        raise UserError(f"{file} cannot be loaded with weights_only=True: {cause}; save it as safetensors, with transformers' "
                       "save_pretrained") from None  # fmt: skip
    if not isinstance(state_dict, dict) or not all(
        isinstance(name, str) and isinstance(t, Tensor) for name, t in state_dict.items()
    ):
        raise UserError(f"{file} is not a state_dict, which contains only tensors; save model.state_dict()")
    size, num_bytes = file.stat().st_size, sum(tensor.numel() * tensor.element_size() for tensor in state_dict.values())
    if num_bytes > 2 * size + MIN_PICKLE_BYTES:  # tensors may share memory, or have one element many times
        raise UserError(f"{file} has {size:,} bytes, but its tensors have {num_bytes:,}; save model.state_dict() again")
    return state_dict
