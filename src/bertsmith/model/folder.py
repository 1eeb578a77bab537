"""A checkpoint folder as anyone can read it without torch: config.json, its format version, and weights as NumPy arrays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..artifacts import read_object, require_kind
from ..errors import UserError
from ..reading.arrays import read_tensor_headers
from .adapter import ADAPTER_FILE, check_base, is_adapter, merge_shapes, merge_weights, parse_adapter

FORMAT_VERSION = (1, 0)  # of config.json: a new minor version adds keys, a new major version changes their meaning
LM_HEAD = "lm"  # name of the language modeling head in the table `heads` of config.json
EMBEDDING_HEAD = "embedding"  # and of the dense layers after the pooling of a sentence embedding
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
INT8_FORMAT: dict[str, Any] = {"kind": "int8", "bits": 8, "scale": "row"}  # `weights` in config.json
SCALE_SUFFIX = ":scale"  # of the tensor with the scales of a matrix; no parameter name ends so

RECORDED_TYPES = {
    "adapter": dict,
    "family": str,
    "max_length": int,
    "recipe": dict,
    "stage": str,
    "task": dict,
    "tokenizer_fingerprint": str,
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; a UserError for a folder without a model of ours (a Hugging Face folder, a corpus ...)."""
    require_kind(folder, "checkpoint")
    config = read_object(folder / "config.json")
    _check_format_version(config.get("format_version"), folder / "config.json")
    for key, kind in RECORDED_TYPES.items():
        if key in config and type(config[key]) is not kind:
            raise UserError(f"{folder / 'config.json'} is damaged: {key} is {str(config[key])[:40]!r}; create {folder} again")
    return config


def stores_int8(config: dict[str, Any], folder: Path) -> bool:
    """Whether the weights are stored as int8 with a scale for each row, by `weights` in config.json."""
    weight_format = config.get("weights")
    if weight_format not in (None, INT8_FORMAT):
        raise UserError(f"{folder / 'config.json'} has weights = {weight_format}, which this version of bertsmith cannot read")
    return weight_format is not None


def list_weight_files(folder: Path) -> list[Path]:
    """The files of the weights: model.safetensors, or the shards that the index names, which lie in the same folder.

    Of an adapter, its file and those of its base model.
    """
    if is_adapter(folder):
        return [folder / ADAPTER_FILE, *list_weight_files(parse_adapter(read_config(folder), folder).base)]
    index = folder / WEIGHTS_INDEX_FILE
    if not index.exists():
        return [folder / WEIGHTS_FILE]
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise UserError(f"{index} is damaged: it has no weight_map from tensors to files")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix != ".safetensors":
            raise UserError(f"{index} is damaged: it lists {name!r}, which is not a weights file in the same folder")
    return [folder / name for name in sorted(set(names.values()))]


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the stored tensors by name; for int8 weights, without the scales of the matrices; of an adapter, merged."""
    if is_adapter(folder):
        own = {name: header.shape for name, header in read_tensor_headers(folder / ADAPTER_FILE).items()}
        return merge_shapes(read_shapes(parse_adapter(read_config(folder), folder).base), own)
    headers = [read_tensor_headers(path) for path in list_weight_files(folder)]
    shapes = {name: header.shape for group in headers for name, header in group.items()}
    is_int8 = stores_int8(read_config(folder), folder)
    return {name: shape for name, shape in shapes.items() if not (is_int8 and name.endswith(SCALE_SUFFIX))}


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """The weights by name as NumPy arrays; int8 matrices are dequantized to float32, as `checkpoint.load_weights` does.

    An adapter is merged into the weights of its base model, which must be those that it was trained on.
    """
    if is_adapter(folder):
        record = read_config(folder)
        base, scaling = parse_adapter(record, folder)
        check_base(record, folder, list_weight_files(base))
        return merge_weights(read_arrays(base), dict(_iter_arrays(folder / ADAPTER_FILE)), scaling, folder)
    stored: dict[str, NDArray[Any]] = {}
    for path in list_weight_files(folder):
        stored |= _iter_arrays(path)
    if not stores_int8(read_config(folder), folder):
        return stored
    scales = {name: array for name, array in stored.items() if name.endswith(SCALE_SUFFIX)}
    weights = {name: array for name, array in stored.items() if name not in scales}
    for name, scale in scales.items():
        matrix = weights.get(name.removesuffix(SCALE_SUFFIX))
        if matrix is None or matrix.dtype != np.int8 or scale.shape != matrix.shape[:1] or scale.dtype.kind != "f":
            raise UserError(f"{folder} does not match its config.json: {name} are not the scales of an int8 matrix")
        weight = matrix.astype(np.float32)
        weight *= scale.astype(np.float32).reshape(-1, *[1] * (matrix.ndim - 1))
        weights[name.removesuffix(SCALE_SUFFIX)] = weight
    if unscaled := [name for name, array in weights.items() if array.dtype == np.int8]:
        raise UserError(f"{folder} does not match its config.json: {unscaled[0]} is int8, but has no scales")
    return weights


def _iter_arrays(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    read_tensor_headers(path)
    try:
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dictionary)
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _check_format_version(version: Any, path: Path) -> None:
    """Raise a UserError for a config.json without a version (written before the first release) or with a newer one."""
    if version is None:
        raise UserError(
            f"{path} has no format_version: it is from before the first release; run the command that created it again"
        )
    numbers = str(version).split(".")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise UserError(f"{path}: format_version = {version!r} is not of the form '1.0'")
    if tuple(map(int, numbers)) > FORMAT_VERSION:
        raise UserError(f"{path} has format_version {version}, but this bertsmith supports up to "
                       f"{'.'.join(map(str, FORMAT_VERSION))}; upgrade bertsmith")  # fmt: skip
