"""Artifact folders: each file in them is known by size and checksum, and the folder appears whole or not at all."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from .errors import BadInput

MANIFEST = "manifest.json"


def write_whole(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, never half of either."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} is missing; {path.parent} is not a folder that bertsmith made, or it is not whole") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged: {error}") from None


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder beside the wanted one to write in; it takes the wanted name, sealed, when all went well."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)  # of a run that died here
    part.mkdir(parents=True)
    try:
        yield part
        seal(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(folder)
    part.replace(folder)


def seal(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write down size and checksum of the named files (all of them, if none are named)."""
    paths = [folder / name for name in names] if names is not None else _files(folder)
    entries = {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": checksum(p)} for p in sorted(paths)}
    write_json(folder / MANIFEST, {"files": entries})


def verify(folder: Path) -> None:
    """Every file the folder was sealed with is there, as long as it was, bit for bit."""
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}")
    for name, entry in read_json(folder / MANIFEST)["files"].items():
        path = folder / name
        if not path.exists():
            raise BadInput(f"{path} is missing, though {folder / MANIFEST} names it; make {folder} again")
        if path.stat().st_size != entry["bytes"]:
            raise BadInput(f"{path} has {path.stat().st_size:,} bytes of {entry['bytes']:,}: truncated; make {folder} again")
        if checksum(path) != entry["sha256"]:
            raise BadInput(f"{path} is damaged (its checksum is not the one in {MANIFEST}); make {folder} again")


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """A short name for any value JSON can hold: equal values, equal names."""
    data = value if isinstance(value, bytes) else msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
