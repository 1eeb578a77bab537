"""Files of answers that a killed run left half made: the same command goes on with them, another begins anew."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..artifacts import claimed, content, fingerprint, named, read_json, write_json
from ..config import Config, plain
from ..errors import BadInput


class Lines(NamedTuple):
    file: BinaryIO
    done: int  # whole lines that are in it already


class Rows(NamedTuple):
    array: NDArray[Any]
    done: int  # rows that are in it already
    mark: Callable[[int], None]  # so many are now


def identity(recipe: Config, model: str, *files: str | None) -> str:
    """A name for all that decides the answers; the model and the files are known by what they hold."""
    told = {name: value for name, value in plain(recipe).items() if name != "out"}
    contents = [found for file in files if file and (found := content(named(file, "data")))]
    folder = named(model, "model")
    return fingerprint([__version__, told, contents, content(folder) or content(folder / "model.safetensors")])


def writable(out: Path, *files: str | None) -> Path:
    """The file, if answers may be written to it: it is no folder, and none of the files they are made from."""
    if out.is_dir():
        raise BadInput(f"out={out} is a folder, where a file is to be made; give the name of a file, such as {out / 'answers'}")
    for file in files:
        if file and out.exists() and (path := named(file, "data")).exists() and out.samefile(path):
            raise BadInput(f"out={out} is the file that is read, and would be lost; choose another out")
    return out


@contextmanager
def lines(out: Path, name: str) -> Iterator[Lines]:
    """A file to write lines to; it has its name only when all is well."""
    part, note = _beside(out)
    with claimed(out):
        if not part.exists() or _known(note).get("identity") != name:
            part.unlink(missing_ok=True)
            write_json(note, {"identity": name})
        with part.open("ab+") as file, _nothing_left(part, note):
            yield Lines(file, _whole_lines(file))
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
        note.unlink()


@contextmanager
def rows(out: Path, name: str, shape: tuple[int, int]) -> Iterator[Rows]:
    """A .npy of this shape to write rows to, mapped: it is never in memory whole."""
    part, note = _beside(out)
    with claimed(out):
        known = _known(note)
        again = part.exists() and known.get("identity") == name
        if not again:
            part.unlink(missing_ok=True)
            write_json(note, {"identity": name, "done": 0})
        array = np.lib.format.open_memmap(part, "r+" if again else "w+", np.float32, shape)

        def mark(done: int) -> None:
            array.flush()
            write_json(note, {"identity": name, "done": done})

        yield Rows(array, known["done"] if again else 0, mark)
        array.flush()
        part.replace(out)
        note.unlink()


@contextmanager
def _nothing_left(part: Path, note: Path) -> Iterator[None]:
    """Of work that was refused before its first line there is nothing to go on with."""
    try:
        yield
    except BadInput:
        if not part.stat().st_size:
            part.unlink()
            note.unlink()
        raise


def _beside(out: Path) -> tuple[Path, Path]:
    """The file while it is being made, and what tells of which command."""
    return out.with_name(out.name + ".part"), out.with_name(out.name + ".part.json")


def _known(note: Path) -> dict[str, Any]:
    return dict(read_json(note)) if note.exists() else {}


def _whole_lines(file: BinaryIO) -> int:
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
