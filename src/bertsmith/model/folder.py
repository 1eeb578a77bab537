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
QUANTIZED_FORMAT: dict[str, Any] = {"kind": "quantized", "scale": "row"}  # the same of `quantize`, whose graphs read them
SCALE_SUFFIX = ":scale"  # of the tensor with the scales of a matrix; no parameter name ends so
INPUT_SCALE_SUFFIX = ":input_scale"  # of what the inputs of a linear layer are multiplied by, (inputs,); see `model.int8`

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
    """Whether matrices are stored as integers with a scale for each row, by `weights` in config.json; see `model.int8`."""
    weight_format = config.get("weights")
    if weight_format not in (None, INT8_FORMAT, QUANTIZED_FORMAT):
        raise UserError(f"{folder / 'config.json'} has weights = {weight_format}, which this version of bertsmith cannot read")
    return weight_format is not None


def reads_stored_weights(config: dict[str, Any]) -> bool:
    """Whether the graphs of a folder read the weights as they are stored; those beside other int8 weights cannot."""
    return config.get("weights") in (None, QUANTIZED_FORMAT)


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
    """Shapes of the weights by name; for integers, of what they stand for, without scales; of an adapter, merged."""
    if is_adapter(folder):
        own = {name: header.shape for name, header in read_tensor_headers(folder / ADAPTER_FILE).items()}
        return merge_shapes(read_shapes(parse_adapter(read_config(folder), folder).base), own)
    groups = [read_tensor_headers(path) for path in list_weight_files(folder)]
    headers = {name: header for group in groups for name, header in group.items()}
    if not stores_int8(read_config(folder), folder):
        return {name: header.shape for name, header in headers.items()}
    matrices = {name: header for name, header in headers.items() if not name.endswith((SCALE_SUFFIX, INPUT_SCALE_SUFFIX))}
    return {
        name: (*header.shape[:-1], 2 * header.shape[-1]) if header.dtype == "U8" and len(header.shape) == 2 else header.shape
        for name, header in matrices.items()
    }


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """The weights by name as NumPy arrays; integers are dequantized to float32, as `checkpoint.load_weights` does.

    An adapter is merged into the weights of its base model, which must be those that it was trained on.
    """
    if is_adapter(folder):
        record = read_config(folder)
        base, scaling = parse_adapter(record, folder)
        check_base(record, folder, list_weight_files(base))
        return merge_weights(read_arrays(base), dict(_iter_arrays(folder / ADAPTER_FILE)), scaling, folder)
    stored = read_stored_arrays(folder)
    if not stores_int8(read_config(folder), folder):
        return stored
    weights = {name: array for name, array in stored.items() if not name.endswith((SCALE_SUFFIX, INPUT_SCALE_SUFFIX))}
    for name, scale in stored.items():
        if name.endswith(SCALE_SUFFIX):
            matrix_name = name.removesuffix(SCALE_SUFFIX)
            weights[matrix_name] = _dequantize(
                folder, matrix_name, weights.get(matrix_name), scale, stored.get(matrix_name + INPUT_SCALE_SUFFIX)
            )
    if unscaled := [name for name, array in weights.items() if array.dtype in (np.int8, np.uint8) and array.ndim > 1]:
        raise UserError(f"{folder} does not match its config.json: {unscaled[0]} is {weights[unscaled[0]].dtype}, but has no "
                       "scales")  # fmt: skip
    return weights


def read_stored_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """The tensors of all weight files as they are stored."""
    stored: dict[str, NDArray[Any]] = {}
    for path in list_weight_files(folder):
        stored |= _iter_arrays(path)
    return stored


def unpack_int4(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """(rows, columns / 2) -> (rows, columns) of -8 to 7: the low four bits are the first half of the columns, 8 is 0."""
    return np.concatenate([packed & 15, packed >> 4], -1).astype(np.int8) - np.int8(8)


def _dequantize(
    folder: Path, name: str, matrix: NDArray[Any] | None, scale: NDArray[Any], input_scale: NDArray[Any] | None
) -> NDArray[np.float32]:
    if matrix is not None and matrix.dtype == np.uint8:
        matrix = unpack_int4(matrix)
    if matrix is None or matrix.dtype != np.int8 or scale.shape != matrix.shape[:1] or scale.dtype.kind != "f":
        raise UserError(f"{folder} does not match its config.json: {name}{SCALE_SUFFIX} are not the scales of an int8 matrix")
    if input_scale is not None and (input_scale.shape != matrix.shape[1:] or input_scale.dtype.kind != "f"):
        raise UserError(f"{folder} does not match its config.json: {name}{INPUT_SCALE_SUFFIX} has not one scale a column")
    weight = matrix.astype(np.float32)
    weight *= scale.astype(np.float32).reshape(-1, *[1] * (matrix.ndim - 1))
    if input_scale is not None:
        weight *= input_scale
    return weight


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
