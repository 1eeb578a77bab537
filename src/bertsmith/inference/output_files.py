"""Files of answers that a killed run left half made: the same command goes on with them, another begins anew."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..artifacts import content_hash, fingerprint, lock_output, read_json, resolve_path, write_json
from ..config import Config, to_dict
from ..errors import UserError


class LineOutput(NamedTuple):
    file: BinaryIO
    num_done: int  # whole lines that are in it already


class ArrayOutput(NamedTuple):
    array: NDArray[Any]
    num_done: int  # rows that are in it already
    record_progress: Callable[[int], None]  # so many are now


def compute_run_id(recipe: Config, model: str, *files: str | None) -> str:
    """A name for all that decides the answers; the model and the files are known by what they hold."""
    told = {name: value for name, value in to_dict(recipe).items() if name != "out"}
    contents = [found for file in files if file and (found := content_hash(resolve_path(file, "data")))]
    folder = resolve_path(model, "model")
    return fingerprint([__version__, told, contents, content_hash(folder) or content_hash(folder / "model.safetensors")])


def check_output_file(out: Path, *files: str | None) -> Path:
    """The file, if answers may be written to it: it is no folder, and none of the files they are made from."""
    if out.is_dir():
        raise UserError(
            f"out={out} is a folder, where a file is to be made; give the name of a file, such as {out / 'answers'}"
        )
    for file in files:
        if file and out.exists() and (path := resolve_path(file, "data")).exists() and out.samefile(path):
            raise UserError(f"out={out} is the file that is read, and would be lost; choose another out")
    return out


@contextmanager
def open_line_output(out: Path, run_id: str) -> Iterator[LineOutput]:
    """A file to write lines to; it has its name only when all is well."""
    part, note = _partial_paths(out)
    with lock_output(out):
        if not part.exists() or _read_progress(note).get("identity") != run_id:
            part.unlink(missing_ok=True)
            write_json(note, {"identity": run_id})
        with part.open("ab+") as file, _remove_if_empty(part, note):
            yield LineOutput(file, _count_complete_lines(file))
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
        note.unlink()


@contextmanager
def open_array_output(out: Path, run_id: str, shape: tuple[int, int]) -> Iterator[ArrayOutput]:
    """A .npy of this shape to write rows to, mapped: it is never in memory whole."""
    part, note = _partial_paths(out)
    with lock_output(out):
        known = _read_progress(note)
        again = part.exists() and known.get("identity") == run_id
        if not again:
            part.unlink(missing_ok=True)
            write_json(note, {"identity": run_id, "done": 0})
        array = np.lib.format.open_memmap(part, "r+" if again else "w+", np.float32, shape)

        def record_progress(num_done: int) -> None:
            array.flush()
            write_json(note, {"identity": run_id, "done": num_done})

        yield ArrayOutput(array, known["done"] if again else 0, record_progress)
        array.flush()
        part.replace(out)
        note.unlink()


@contextmanager
def _remove_if_empty(part: Path, progress_file: Path) -> Iterator[None]:
    """Of work that was refused before its first line there is nothing to go on with."""
    try:
        yield
    except UserError:
        if not part.stat().st_size:
            part.unlink()
            progress_file.unlink()
        raise


def _partial_paths(out: Path) -> tuple[Path, Path]:
    """The file while it is being made, and what tells of which command."""
    return out.with_name(out.name + ".part"), out.with_name(out.name + ".part.json")


def _read_progress(progress_file: Path) -> dict[str, Any]:
    return dict(read_json(progress_file)) if progress_file.exists() else {}


def _count_complete_lines(file: BinaryIO) -> int:
    """How many there are; half a line behind them is cut off."""
    file.seek(0)
    count, end, at = 0, 0, 0
    while data := file.read(1 << 20):
        count += data.count(b"\n")
        end = at + data.rfind(b"\n") + 1 if b"\n" in data else end
        at += len(data)
    file.truncate(end)
    file.seek(end)
    return count
