"""An adapter folder: low-rank updates (LoRA) of another model's weights, merged into them whenever it is loaded.

config.json records `adapter`: the base model (`base`), the SHA-256 of its weights and the scaling of the updates.
adapter.safetensors has lora_A and lora_B of each updated matrix in float16, and every other weight that the base's encoder
does not have: heads, and what was trained as a whole, in float16 too if that is exact.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..artifacts import checksum
from ..errors import UserError
from ..pretrained import shipped

ADAPTER_FILE = "adapter.safetensors"
A_SUFFIX, B_SUFFIX = ":lora_A", ":lora_B"  # of the two tensors of a matrix; no parameter name ends so
BASE_PREFIX = "encoder."  # of the weights that are the base's, unless the adapter has them


class Adapter(NamedTuple):
    """What config.json records of an adapter: the folder of its base model, and the factor of B A."""

    base: Path
    scaling: float


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_FILE).is_file()


def parse_adapter(record: Mapping[str, Any], folder: Path) -> Adapter:
    """The base model's folder: a shipped model by its name, another one by its path relative to `folder`."""
    values = record.get("adapter")
    types = {"base": str, "base_sha256": str, "scaling": float}
    if not isinstance(values, dict) or any(type(values.get(name)) is not kind for name, kind in types.items()):
        raise UserError(f"{folder / 'config.json'} does not say of which model {ADAPTER_FILE} is an adapter")
    name = values["base"]
    base = shipped.find_folder(name) or folder / name
    if not (base / "config.json").is_file():
        raise UserError(f"{folder} is an adapter of {name}, and there is no such model at {base}; put it there")
    if is_adapter(base):
        raise UserError(f"{folder} is an adapter of {name}, which is an adapter itself; only whole models can be its base")
    return Adapter(base, values["scaling"])


def check_base(record: Mapping[str, Any], folder: Path, weight_files: list[Path]) -> None:
    """Raises a UserError unless the base's weights are those that the adapter was trained on."""
    if hash_weights(weight_files) != record["adapter"]["base_sha256"]:
        raise UserError(f"{folder} is an adapter of {record['adapter']['base']}, whose weights are not those that it was "
                        "trained on; use that version of it, or train the adapter again")  # fmt: skip


def hash_weights(weight_files: list[Path]) -> str:
    """SHA-256 over the checksums of the files of a model's weights."""
    return hashlib.sha256("".join(map(checksum, weight_files)).encode()).hexdigest()


def merge_shapes(base: Mapping[str, tuple[int, ...]], adapter: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the merged weights."""
    own = {name: shape for name, shape in adapter.items() if not name.endswith((A_SUFFIX, B_SUFFIX))}
    return {name: shape for name, shape in base.items() if name.startswith(BASE_PREFIX)} | own


def merge_weights(
    base: Mapping[str, NDArray[Any]], adapter: Mapping[str, NDArray[Any]], scaling: float, folder: Path
) -> dict[str, NDArray[Any]]:
    """W + scaling * B A of each updated matrix W (out, in), and the other weights as they are.

    A fused matrix of n parts has an update for each: A (n * r, in), B (n, out / n, r).
    """
    own = {name: np.asarray(array, np.float32) if array.dtype == np.float16 else array
           for name, array in adapter.items() if not name.endswith((A_SUFFIX, B_SUFFIX))}  # fmt: skip
    merged = {name: array for name, array in base.items() if name.startswith(BASE_PREFIX)} | own
    for name in sorted({name.rpartition(":")[0] for name in adapter.keys() - own.keys()}):
        down, up, weight = adapter.get(name + A_SUFFIX), adapter.get(name + B_SUFFIX), merged.get(name)
        if down is None or up is None or weight is None or not _fits(weight, down, up):
            raise UserError(f"{folder / ADAPTER_FILE} does not fit its base model: {name} has no matching update")
        parts = np.asarray(down, np.float32).reshape(len(up), -1, down.shape[1])
        update = (np.asarray(up, np.float32) @ parts).reshape(weight.shape)
        update *= np.float32(scaling)
        update += weight
        merged[name] = update
    return merged


def _fits(weight: NDArray[Any], down: NDArray[Any], up: NDArray[Any]) -> bool:
    if (weight.ndim, down.ndim, up.ndim) != (2, 2, 3) or any(array.dtype.kind != "f" for array in (weight, down, up)):
        return False
    parts, rows, rank = up.shape
    return weight.shape == (parts * rows, down.shape[1]) and down.shape[0] == parts * rank and rank > 0
