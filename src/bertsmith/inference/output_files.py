"""Resumable output files (JSON lines, .npy): after a kill the same command continues the partial file, another starts over.

A finished file has the id of its run beside it (`.NAME.run.json`), so that only the same command takes it for its own.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from .. import __version__, writing
from ..artifacts import checksum, content_hash, fingerprint, read_object, resolve_path
from ..config import Config, to_dict
from ..errors import UserError
from ..model.folder import list_weight_files, read_shapes
from ..tasks.standard_input import is_standard_input
from ..writing import allocate_file, lock_output, name_in_errors, open_own, sync_folder, write_json


class LineOutput(NamedTuple):
    """An output file of lines, opened for appending."""

    file: BinaryIO
    num_done: int  # complete lines already written


class ArrayOutput(NamedTuple):
    """A memory-mapped output array."""

    array: NDArray[Any]
    num_done: int  # rows already written
    record_progress: Callable[[int], None]  # flush, and store the new number of rows


def compute_run_id(recipe: Config, model: str, *files: str | None) -> str:
    """Hash of everything that determines the output; the model and the files enter with their content hash.

    Standard input can be read only once: no run with it is equal to another.
    """
    if any(map(is_standard_input, files)):
        return uuid4().hex
    settings = {name: value for name, value in to_dict(recipe).items() if name not in ("out", "overwrite")}
    contents = [content for file in files if file and (content := content_hash(resolve_path(file, "data")))]
    folder = resolve_path(model, "model")
    return fingerprint([__version__, settings, contents, content_hash(folder) or _hash_weights(folder)])


def check_output_file(out: Path, model: str, *files: str | None) -> Path:
    """Return `out` if it may be written: a new or regular file, no input and of no model; what is beside it must be ours."""
    if out.is_dir():
        raise UserError(f"out={out} is a folder; give the name of a file, such as {out / 'answers.jsonl'}")
    inputs = [resolve_path(file, "data") for file in files if file and not is_standard_input(file)]
    # whether an earlier output may be replaced is decided in `read_finished_result`
    writing.check_output_file(out, resolve_path(model, "model"), *inputs, overwrite=True, is_ours=_has_record)
    part, progress_file = _partial_paths(out)
    for path in (part, progress_file, _record_path(out)):
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or not _is_ours(path, progress_file)):
            raise UserError(f"{path} exists, and is not of an earlier run; remove it, or choose another out")
    return out


def _is_ours(path: Path, progress_file: Path) -> bool:
    """Whether a file beside the output was written here: a record by what it says, a partial file by the record beside it."""
    record = path if path.suffix == ".json" else progress_file
    try:
        return record.is_file() and "identity" in dict(read_object(record))
    except (UserError, TypeError, ValueError):
        return False


def read_finished_result(out: Path, run_id: str, overwrite: bool) -> dict[str, Any] | None:
    """The result of this run if `out` has it already, else None; the output of another run is an error unless `overwrite`."""
    if not out.exists():
        return None
    record = _read_progress(_record_path(out))
    if record.get("identity") == run_id and record.get("checksum") == checksum(out):
        return record.get("result")
    if not overwrite:
        raise UserError(f"out={out} exists and has the output of other inputs or settings, or was changed; choose another "
                       "out, or set overwrite=true to replace it")  # fmt: skip
    return None


def record_result(out: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Store the result of a run beside its finished output, for `read_finished_result`; returns it."""
    record_file = _record_path(out)
    write_json(record_file, _read_progress(record_file) | {"result": result})
    return result


@contextmanager
def open_line_output(out: Path, run_id: str) -> Iterator[LineOutput]:
    """Yields a `.part` file to write lines to, continued if `run_id` is the same; renamed to `out` on success."""
    part, progress_file = _partial_paths(out)
    with lock_output(out):
        if not part.exists() or _read_progress(progress_file).get("identity") != run_id:
            part.unlink(missing_ok=True)
            write_json(progress_file, {"identity": run_id})
        with (
            name_in_errors(out),
            open_own(part, "ab+") as file,
            _remove_if_empty(part, progress_file),
        ):
            yield LineOutput(file, _count_complete_lines(file))
            file.flush()
            os.fsync(file.fileno())
        _publish(out, run_id)


@contextmanager
def open_array_output(out: Path, run_id: str, shape: tuple[int, int]) -> Iterator[ArrayOutput]:
    """Yields a float32 .npy of this shape, memory-mapped; continued and renamed as in `open_line_output`."""
    part, progress_file = _partial_paths(out)
    with lock_output(out):
        progress = _read_progress(progress_file)
        header, num_bytes = _npy_header(shape), 4 * math.prod(shape)
        size = part.stat().st_size if part.exists() else 0
        resumes = size == len(header) + num_bytes and progress.get("identity") == run_id
        if not resumes:
            part.unlink(missing_ok=True)
            write_json(progress_file, {"identity": run_id, "done": 0})
            try:
                allocate_file(part, num_bytes, header)
            except OSError:
                part.unlink(missing_ok=True)
                progress_file.unlink()
                raise
        array = np.lib.format.open_memmap(part, "r+")

        def record_progress(num_done: int) -> None:
            array.flush()
            write_json(progress_file, {"identity": run_id, "done": num_done})

        yield ArrayOutput(array, progress["done"] if resumes else 0, record_progress)
        array.flush()
        _publish(out, run_id)


@contextmanager
def open_growing_array(out: Path, run_id: str, row_size: int) -> Iterator[Callable[[NDArray[np.float32]], None]]:
    """Yields a function that appends rows to a float32 .npy of any length; not continued after a kill. Renamed on success."""
    part, progress_file = _partial_paths(out)
    with lock_output(out):
        write_json(progress_file, {"identity": run_id})
        num_rows = 0
        with name_in_errors(out), open_own(part, "wb") as file, _remove_if_empty(part, progress_file):

            def write_header() -> None:  # numpy leaves room for any number of rows, so that its length does not change
                header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, row_size)}
                np.lib.format.write_array_header_1_0(file, header)

            def append(rows: NDArray[np.float32]) -> None:
                nonlocal num_rows
                if not num_rows:
                    write_header()
                file.write(np.ascontiguousarray(rows, "<f4").tobytes())
                file.flush()
                num_rows += len(rows)

            yield append
            file.seek(0)
            write_header()
            file.flush()
            os.fsync(file.fileno())
        _publish(out, run_id)


@contextmanager
def _remove_if_empty(part: Path, progress_file: Path) -> Iterator[None]:
    """Delete the partial file of a run that failed with a UserError before its first line: there is nothing to resume."""
    try:
        yield
    except UserError:
        if not part.stat().st_size:
            part.unlink()
            progress_file.unlink()
        raise


def _npy_header(shape: tuple[int, int]) -> bytes:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def _publish(out: Path, run_id: str) -> None:
    """Rename the partial file to `out`; before that, record whose it is."""
    part, progress_file = _partial_paths(out)
    write_json(_record_path(out), {"identity": run_id, "checksum": checksum(part)})
    part.replace(out)
    sync_folder(out.absolute().parent)
    progress_file.unlink()


def _has_record(out: Path) -> bool:
    return _record_path(out).is_file()


def _hash_weights(folder: Path) -> list[str]:
    """Of a model folder without a manifest; what the folder is not is reported by whoever loads it."""
    with suppress(UserError):
        read_shapes(folder)  # sizes are checked before anything long
        return [content_hash(path) for path in list_weight_files(folder)]
    return []


def _record_path(out: Path) -> Path:
    return out.with_name(f".{out.name}.run.json")


def _partial_paths(out: Path) -> tuple[Path, Path]:
    """The partial file, and the JSON file beside it with the id of its run."""
    return out.with_name(out.name + ".part"), out.with_name(out.name + ".part.json")


def _read_progress(progress_file: Path) -> dict[str, Any]:
    return dict(read_object(progress_file)) if progress_file.exists() else {}


def _count_complete_lines(file: BinaryIO) -> int:
    """Count the lines; an incomplete last line is truncated, and the file positioned at the end."""
    file.seek(0)
    count, end, offset = 0, 0, 0
    while chunk := file.read(1 << 20):
        count += chunk.count(b"\n")
        end = offset + chunk.rfind(b"\n") + 1 if b"\n" in chunk else end
        offset += len(chunk)
    file.truncate(end)
    file.seek(end)
    return count
