"""Tensors on disk in safetensors (no pickle), with readable errors for a full disk or a damaged file."""

import os
import re
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .errors import UserError, explain_reason
from .reading.arrays import read_tensor_headers
from .writing import temp_path


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write the file atomically; a link at `path` is replaced, not followed."""
    part = temp_path(path)
    try:
        save_file(tensors, part)
        part.replace(path)
    except (SafetensorError, OSError) as error:
        part.unlink(missing_ok=True)
        needed, free = sum(tensor.nbytes for tensor in tensors.values()), shutil.disk_usage(path.parent).free
        if free < needed or "No space" in str(error):
            raise UserError(f"no space left for {path}: {needed:,} bytes are needed, {free:,} are free; free some space "
                            "and run the "
                           "same command again to resume from the last checkpoint") from None  # fmt: skip
        raise UserError(f"{path} cannot be written: {_explain(error)}") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name; their sizes are compared with that of the file before memory is allocated."""
    read_tensor_headers(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:  # KeyError: a dtype that torch lacks
        raise UserError(f"{path} cannot be read: {_explain(error)}") from None


def _explain(error: Exception) -> str:
    """Why a file could not be read or written, and a way out; Rust tells an error of the system as text."""
    if match := re.search(r"\(os error (\d+)\)", str(error)):
        error = OSError(int(match[1]), os.strerror(int(match[1])))
    return explain_reason(error) if isinstance(error, OSError) else f"{error}; copy or create it again"
