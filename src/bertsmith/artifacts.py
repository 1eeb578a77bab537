"""Artifact folders, written atomically, with a manifest of the size and SHA-256 of every file.

Also here: resolving the path that a setting names, telling what a folder is, locking an output folder, atomic file writes and
content hashes.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, cast

import msgspec

from . import hub_names
from .console import Console
from .errors import UserError
from .pretrained import shipped
from .reading import MAX_JSON_BYTES, as_object, open_regular, parse_json, read_bytes
from .writing import MANIFEST, encode_json, make_temp_folder, sync_file, sync_folder, temp_path, write_json

MODEL_KEYS = ("model", "init", "folder", "teacher", "student")  # recipe keys that name a model, which may be a shipped one
MODEL_PART_KEYS = ("tokenizer", "extend")  # recipe keys that name a part of a model

FolderKind = Literal[
    "tokenizer", "corpus", "pre-trained model", "fine-tuned model", "word vectors", "Hugging Face folder", "unfinished run"
]
MODEL_KINDS = ("pre-trained model", "fine-tuned model", "word vectors")
CORPUS_TOKENS = "tokens.bin"  # the file that every corpus has, and no other folder


class FileEntry(msgspec.Struct):
    """Size and checksum of a file when the manifest was written."""

    bytes: int
    sha256: str


class FileCheck(NamedTuple):
    """What became of a file that a manifest lists."""

    name: str
    bytes: int  # as recorded
    problem: str  # how it differs, as the rest of a sentence; empty: it does not


class Manifest(msgspec.Struct):
    """Contents of manifest.json: entries by path relative to the folder, with `/` as separator."""

    files: dict[str, FileEntry]
    run: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET  # identity and result of the command, for formats with no card


def resolve_path(name_or_path: str | Path, key: str) -> Path:
    """The folder or file named by the recipe key `key`, with `~` expanded and a symlink resolved; an empty value is an error.

    For keys that take a model, `mini-en` is the shipped model of that name, unless a folder of that name exists.
    """
    if not str(name_or_path).strip():
        raise UserError(f"{key} is empty; give the path of a folder or file")
    try:
        path = Path(name_or_path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{key}={name_or_path}: {error}") from None
    if key in (*MODEL_KEYS, *MODEL_PART_KEYS) and not path.exists():
        path = shipped.find_folder(str(name_or_path)) or _check_model_name(path, key)
    try:
        return path.resolve() if path.is_symlink() or not path.name else path
    except (RuntimeError, OSError):  # Python before 3.13, and from it
        raise UserError(f"{key}={name_or_path} is a loop of symbolic links; give the path of a folder or file") from None


def detect_kind(folder: Path) -> FolderKind | None:
    """What a folder is, by its files and those that its manifest lists; None if nothing is there, or another program's files.

    A name where nothing is, beside the `.part` folder of a stage that was interrupted, is an unfinished run.
    """
    if not folder.is_dir():
        return "unfinished run" if folder.with_name(folder.name + ".part").is_dir() else None
    names = {path.name for path in folder.iterdir()}
    manifest = _parse_file(folder / MANIFEST) if MANIFEST in names else {}
    names |= set(files) if isinstance(manifest, dict) and isinstance(files := manifest.get("files"), dict) else set()
    if CORPUS_TOKENS in names:
        return "corpus"
    if "config.json" in names:
        config = _parse_file(folder / "config.json")
        if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
            return "Hugging Face folder"
        is_vectors = config.get("family") == "vectors" and "task" not in config
        return "word vectors" if is_vectors else "fine-tuned model" if "task" in config else "pre-trained model"
    if names & {"state", "metrics.jsonl"}:
        return "unfinished run"
    if "modules.json" in names or any(name.endswith((".safetensors", ".bin")) for name in names):
        return "Hugging Face folder"
    return "tokenizer" if names & {"tokenizer.json", "vocab.txt"} else None


def require_kind(folder: Path, expected: str) -> None:
    """Raise unless a folder is the `corpus`, `checkpoint` or `tokenizer` that is expected, saying what it is and what to do."""
    kind = detect_kind(folder)
    if kind == expected or (kind in MODEL_KINDS and expected == "checkpoint"):
        return
    noun = "bertsmith checkpoint" if expected == "checkpoint" else expected
    if kind is not None:
        problem = f"{folder} is {_with_article(kind)}, not a {noun}"
    else:
        problem = f"{folder} is not a {noun} folder" if folder.exists() else f"there is no folder {folder}"
    raise UserError(f"{problem}; {_way_out(folder, kind, expected)}")


def read_json(path: Path) -> Any:
    """The value of a JSON file; it is missing, damaged or not as its folder's manifest says: a UserError."""
    return parse_json(read_sealed(path), str(path))


def read_object(path: Path) -> dict[str, Any]:
    """`read_json` of a file that holds a dictionary."""
    return as_object(read_json(path), path)


def read_result(folder: Path) -> dict[str, Any]:
    """What the card.json of a folder says the command reported."""
    path = folder / "card.json"
    return as_object(read_object(path).get("result"), f"{path}: result")


def read_sealed(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file, which must be those of the manifest in its folder, if one lists it."""
    data = _read_bytes(path, max_bytes)
    manifest = path.with_name(MANIFEST)
    if path != manifest and manifest.exists():
        files = _parse_file(manifest)  # of ours or of another program
        files = files.get("files") if isinstance(files, dict) else None
        entry = files.get(path.name) if isinstance(files, dict) else None
        if isinstance(entry, dict) and entry.get("sha256") != hashlib.sha256(data).hexdigest():
            raise UserError(f"{path} is damaged (its checksum differs from {MANIFEST}); create {path.parent} again")
    return data


@contextmanager
def atomic_folder(folder: Path, run: dict[str, Any] | None = None, sync: bool = True) -> Iterator[Path]:
    """Yields a temporary folder to write to; on success it gets a manifest and is renamed to `folder`.

    An existing `folder` is replaced only then, whatever it holds: call `check_writable` first. `run` and `sync` are as in
    `write_manifest`.
    """
    folder = folder.absolute()  # so that `.` has a name too
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"{folder} is a file, but the output must be a folder; choose another out, or remove the file")
    part, old = make_temp_folder(folder), temp_path(folder, is_old=True)
    try:
        yield part
        write_manifest(part, None, run, sync)
        if folder.exists():
            folder.replace(old)  # renamed first: removing takes a while, and a kill meanwhile would leave half a folder
        part.replace(folder)
        sync_folder(folder.parent)
    except BaseException:
        if old.exists() and not folder.exists():
            old.replace(folder)
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_manifest(
    folder: Path, names: Iterable[str] | None = None, run: dict[str, Any] | None = None, sync: bool = True
) -> None:
    """Write manifest.json with size and checksum of the named files (None: all files in the folder).

    All of them get the mode of a new file (0666 without the umask): some writers, such as safetensors' (0600), set their own.
    sync: wait until the disk has the files; without it, a power cut may leave damaged ones, which the checksums tell.
    run: `identity` and `result` of the command that wrote the folder, if nothing else in it says so.
    """
    paths = sorted([folder / name for name in names] if names is not None else _list_files(folder))
    with ThreadPoolExecutor(1) as pool:  # the disk writes while checksums are computed
        synced = pool.map(sync_file, paths if sync else ())
        entries = {path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, checksum(path)) for path in paths}
        list(synced)
    write_json(folder / MANIFEST, Manifest(entries, run or msgspec.UNSET))
    mode = stat.S_IMODE((folder / MANIFEST).stat().st_mode)  # the umask cannot be read without changing it for all threads
    for path in paths:
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)


def read_finished_run(folder: Path, identity: str) -> dict[str, Any] | None:
    """The result that `write_manifest` recorded in a folder, if the same command wrote it, else None."""
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    run = manifest.get("run") if isinstance(manifest, dict) else None
    if not isinstance(run, dict) or run.get("identity") != identity:
        return None
    return as_object(run.get("result"), folder / MANIFEST)


def verify_manifest(folder: Path) -> None:
    """Raise unless every file in the manifest exists with the recorded size and checksum."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; check the path")
    for check in check_files(folder):
        if check.problem:
            raise UserError(f"{folder / check.name} {check.problem}; create {folder} again")


def verify_if_sealed(folder: Path) -> None:
    """`verify_manifest`; a folder without a manifest gets one warning that nothing was verified."""
    if (folder / MANIFEST).exists():
        verify_manifest(folder)
    else:
        _warn_unsealed(folder.absolute())


def check_files(folder: Path) -> Iterator[FileCheck]:
    """Compare every file that the manifest of a folder lists with its recorded size and checksum."""
    for name, entry in _read_manifest(folder / MANIFEST).items():
        yield FileCheck(name, entry.bytes, _find_problem(folder / name, entry))


def list_unsealed(folder: Path) -> list[str]:
    """Files in a folder that its manifest does not list, except those in subfolders with a manifest of their own."""
    sealed = _read_manifest(folder / MANIFEST).keys() if (folder / MANIFEST).exists() else {}
    names = []
    for parent, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if not os.path.lexists(Path(parent, name, MANIFEST)))
        names += [Path(parent, name).relative_to(folder).as_posix() for name in sorted(files)]
    return [name for name in names if name not in sealed and name != MANIFEST]


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open_regular(path) as file:
        return hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()


def content_hash(path: Path) -> str:
    """Identity by content, not by path: the checksum of a file, or of a folder's manifest.

    Empty for anything else: a folder without a manifest, a pipe (which can be read only once), a missing path.
    """
    path = path / MANIFEST if path.is_dir() else path
    return checksum(path) if path.is_file() else ""


def fingerprint(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of a value, in canonical JSON (bytes: as they are)."""
    data = value if isinstance(value, bytes) else encode_json(value, "deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def _check_model_name(path: Path, key: str) -> Path:
    """Raise for a missing name that is no path: a hub name, or a misspelled model. Paths are checked by whoever reads them."""
    name = str(path)
    is_repo_id = hub_names.find_repo_id(name) is not None and (len(path.parts) == 1 or not path.parent.exists())
    if path.is_symlink() or not (is_repo_id or len(path.parts) == 1) or detect_kind(path) is not None:
        return path
    if key in MODEL_KEYS:
        hint = f"{hub_names.import_hint(name, key)}; preset of that size: {hub_names.find_preset(name)}" if is_repo_id else ""
        raise UserError(
            f"there is no folder {name}, and no shipped model of that name ({shipped.format_known_names()}); "
            + (hint or "give the path of a model folder")
        )
    if is_repo_id and len(path.parts) == 1:  # a tokenizer
        raise UserError(f"there is no folder {name}; {hub_names.import_hint(name, key)}")
    return path


def _with_article(kind: FolderKind) -> str:
    return {"word vectors": "a folder of word vectors", "unfinished run": "an unfinished run"}.get(kind, f"a {kind}")


def _way_out(folder: Path, kind: FolderKind | None, expected: str) -> str:
    """How to get a folder of the expected kind, as the end of an error message."""
    if kind == "unfinished run":
        return "it has not finished: run the same command again to resume"
    if kind == "Hugging Face folder":
        return f"convert it with `bertsmith import source={folder} out=...`, and give that folder"
    if folder.is_file():
        return f"to convert a word vector file, run `bertsmith import source={folder} out=...`"
    if expected == "corpus":
        tokenizer = f"tokenizer={folder} " if kind else ""
        return f"create one with `bertsmith prepare {tokenizer}texts=FILES out=...`"
    if expected == "tokenizer":  # every other kind has one
        return "give a tokenizer folder, a tokenizer.json or a vocab.txt"
    if kind == "corpus":
        return f"train one on it with `bertsmith pretrain corpus={folder} out=...`"
    if expected == "run":
        return "give the output folder of `pretrain` or `finetune`, finished or not"
    return f"give the output folder of {'' if expected == 'checkpoint' else '`prepare`, '}`pretrain`, `finetune` or `import`"


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST]


def _read_manifest(path: Path) -> dict[str, FileEntry]:
    try:
        files = msgspec.convert(read_json(path), Manifest).files
    except msgspec.ValidationError:
        raise UserError(f"{path} is damaged: it has no valid list of files; create {path.parent} again") from None
    for name in files:
        if not name or name.startswith("/") or "\0" in name or ".." in PurePosixPath(name).parts:
            raise UserError(f"{path} is damaged: it lists {name!r}, which is not inside the folder; create {path.parent} again")
    return files


def _find_problem(path: Path, entry: FileEntry) -> str:
    """How a file differs from its entry in a manifest, empty if it does not."""
    if not path.exists():
        return f"is missing, but listed in {MANIFEST}"
    if path.is_file() and (size := path.stat().st_size) != entry.bytes:
        problem = "truncated" if size < entry.bytes else "too long"
        return f"is {problem}: {size:,} bytes instead of {entry.bytes:,}"
    return "" if checksum(path) == entry.sha256 else f"is damaged (its checksum differs from {MANIFEST})"


def _parse_file(path: Path) -> Any:
    """A JSON file that is not compared with the manifest, such as the manifest itself."""
    return parse_json(_read_bytes(path, MAX_JSON_BYTES), str(path))


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    try:
        return read_bytes(path, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is missing; {path.parent} was not created by bertsmith, or is incomplete") from None


@cache  # a stage may load a model several times
def _warn_unsealed(folder: Path) -> None:
    Console().warn(f"{folder} has no {MANIFEST}, so nothing tells whether its files are intact")
