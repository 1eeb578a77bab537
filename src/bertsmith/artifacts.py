"""Artifact folders: each file in them is known by size and checksum, and the folder appears whole or not at all."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from .errors import UserError
from .pretrained import shipped

MANIFEST = "manifest.json"
IN_PROGRESS = ".making"  # in a folder that is being made: it is ours to remove
MODEL_KEYS = ("model", "init", "folder")  # settings that name a model, and may name a shipped one
MODEL_PART_KEYS = ("tokenizer", "extend")  # settings that name a part of a model


class FileEntry(msgspec.Struct):
    """What a file was when its folder was sealed."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct):
    files: dict[str, FileEntry]


def resolve_path(name_or_path: str | Path, key: str) -> Path:
    """The folder or file that a setting names, links followed; nothing, or nobody's home, is refused.

    Where a model is asked for, `mini-en` is the shipped model of that name, unless there is such a folder here.
    """
    if not str(name_or_path).strip():
        raise UserError(f"{key} is empty; give the path of a folder or file")
    try:
        path = Path(name_or_path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{key}={name_or_path}: {error}") from None
    if key in (*MODEL_KEYS, *MODEL_PART_KEYS) and not path.exists():
        path = shipped.find_folder(str(name_or_path)) or _check_model_name(path, key)
    return path.resolve() if path.is_symlink() or not path.name else path


def _check_model_name(path: Path, key: str) -> Path:
    """A name of one word that nothing here has is more likely a model's, misspelt; a path is left to who reads it."""
    if key in MODEL_KEYS and len(path.parts) == 1 and not path.is_symlink():
        raise UserError(
            f"there is no folder {path}, and no model of that name comes with bertsmith; {shipped.format_known_names()}"
        )
    return path


def check_writable(folder: Path, *allowed_patterns: str) -> Path:
    """The folder, if it may be written: it is not there, or empty but for empty folders, or holds what a run of ours leaves
    (patterns)."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, where a folder is to be made; choose another name, or remove it")
    if folder.exists() and not _is_empty(folder) and not any(any(folder.glob(name)) for name in allowed_patterns):
        raise UserError(f"{folder} exists and holds other things; choose another out, or remove it")
    return folder


def _is_empty(folder: Path) -> bool:
    """A run that was stopped while it saved for the first time leaves no more."""
    return all(one.is_dir() and not any(one.iterdir()) for one in folder.iterdir())


@contextmanager
def lock_output(out: Path) -> Iterator[None]:
    """While it lasts, no other process of this machine may claim the folder: two runs would spoil each other's work."""
    path = out.with_name(f".{out.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = path.stat().st_ino == os.fstat(file.fileno()).st_ino  # not a file that its holder removed just now
        except OSError:
            mine = False
        if not mine:
            raise UserError(f"another run is writing {out}; wait for it, or choose another out")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, never half of either."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {path.parent} is not a folder that bertsmith made, or it is not whole") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder beside the wanted one to write in; it takes the wanted name, sealed, when all went well.

    A folder that has the name goes then and not before, whatever it holds: a stage asks first whether it may.
    """
    folder = folder.absolute()  # `.` has a name too
    part = folder.with_name(folder.name + ".part")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, where a folder is to be made; choose another name, or remove it")
    shutil.rmtree(check_writable(part, IN_PROGRESS, MANIFEST), ignore_errors=True)  # of a run that died here
    part.mkdir(parents=True)
    (part / IN_PROGRESS).touch()
    try:
        yield part
        write_manifest(part)
        (part / IN_PROGRESS).unlink()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if folder.exists():
        old = folder.with_name(folder.name + ".old.part")
        shutil.rmtree(old, ignore_errors=True)
        folder.replace(old)  # rather than removed, which takes a while: a kill in that while would leave half a folder
        part.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        part.replace(folder)


def write_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write down size and checksum of the named files (all of them, if none are named)."""
    paths = [folder / name for name in names] if names is not None else _list_files(folder)
    entries = {path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, checksum(path)) for path in sorted(paths)}
    write_json(folder / MANIFEST, Manifest(entries))


def verify_manifest(folder: Path) -> None:
    """Every file the folder was sealed with is there, as long as it was, bit for bit."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    for name, entry in _read_manifest(folder / MANIFEST).items():
        path = folder / name
        if not path.exists():
            raise UserError(f"{path} is missing, though {folder / MANIFEST} names it; make {folder} again")
        if (size := path.stat().st_size) != entry.bytes:
            fault = "truncated" if size < entry.bytes else "longer than it was"
            raise UserError(f"{path} is {fault}: {size:,} bytes of {entry.bytes:,}; make {folder} again")
        if checksum(path) != entry.sha256:
            raise UserError(f"{path} is damaged (its checksum is not the one in {MANIFEST}); make {folder} again")


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(path: Path) -> str:
    """By what a file or a sealed folder holds, wherever it lies: the checksum of the file, or of the folder's manifest.

    Empty for anything else: a folder that is not sealed, a pipe (which could be read but once), what is not there.
    """
    path = path / MANIFEST if path.is_dir() else path
    return checksum(path) if path.is_file() else ""


def fingerprint(value: Any) -> str:
    """A short name for any value JSON can hold: equal values, equal names."""
    data = value if isinstance(value, bytes) else msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path not in (folder / MANIFEST, folder / IN_PROGRESS)]


def _read_manifest(path: Path) -> dict[str, FileEntry]:
    try:
        return msgspec.convert(read_json(path), Manifest).files
    except msgspec.ValidationError:
        raise UserError(f"{path} is damaged: it does not say which files there are; make {path.parent} again") from None
