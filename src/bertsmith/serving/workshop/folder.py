"""What is below the workshop's folder, and paths in it: no `..`, no links, nothing outside, and files of a bounded size."""

import os
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...artifacts import CORPUS_TOKENS
from ...errors import UserError
from ...reading import as_object, parse_json, read_bytes

MAX_DEPTH = 5  # of folders below the root
MAX_FOLDERS = 2000  # that are looked into
MAX_LOG_BYTES = 64 << 20  # of metrics.jsonl
MAX_RECORD_BYTES = 8 << 20  # of the other JSON files
WORK_FOLDERS = ("state", "seeds")  # of a run: they are no runs of their own


class Entry(NamedTuple):
    """A folder that a page can show."""

    path: str  # below the root, with slashes; "." for the root itself
    kind: str  # run, corpus, race, compress
    modified: float  # seconds since 1970


class Workshop:
    """The folder whose content the pages show."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UserError(f"runs={root} is no folder; give the folder that has your runs, such as runs=out")
        self.root = root.resolve()

    def resolve(self, path: str) -> Path:
        """The folder of a path below the root; UserError for every other path. Links are not followed."""
        parts = path.split("/")
        if "\0" in path or "\\" in path or path.startswith("/") or ".." in parts or len(parts) > MAX_DEPTH or len(path) > 1000:
            raise UserError(f"{path[:200]!r} is no path below the folder of the runs")
        folder = self.root
        for part in parts:
            folder = folder / part if part not in ("", ".") else folder
            try:
                is_folder = stat.S_ISDIR(folder.lstat().st_mode)  # a link is none
            except (OSError, ValueError):
                is_folder = False
            if not is_folder:
                raise UserError(f"there is no folder {path[:200]!r}; it was removed, or is a link, which is not followed")
        return folder

    def relative(self, folder: Path) -> str | None:
        """The path of a folder below the root, by which `resolve` finds it; None for one that it does not find."""
        try:
            path = folder.resolve().relative_to(self.root).as_posix()
            self.resolve(path)
        except (ValueError, OSError, RuntimeError, UserError):
            return None
        return path

    def find_entries(self) -> list[Entry]:
        """Runs, corpora, races and compressions, the last modified first."""
        entries = list[Entry]()
        for parent, folders, files in islice(os.walk(self.root), MAX_FOLDERS):
            depth = len(Path(parent).relative_to(self.root).parts)
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in WORK_FOLDERS)
            folders[:] = folders[:MAX_FOLDERS] if depth + 1 < MAX_DEPTH else []
            kind = _detect_entry(set(files), Path(parent))
            if kind:
                names = [name for name in ("metrics.jsonl", "race.json", "front.json", "card.json") if name in files]
                entries.append(Entry(self.relative(Path(parent)) or ".", kind, _modified(Path(parent), names)))
        return sorted(entries, key=lambda entry: -entry.modified)


def read_record(path: Path) -> dict[str, Any]:
    """The values of a JSON file; empty if there is none, or if it is being written."""
    try:
        if path.is_symlink():
            return {}
        return as_object(parse_json(read_bytes(path, MAX_RECORD_BYTES), str(path)), path)
    except (OSError, UserError):
        return {}


def check_log(folder: Path) -> Path:
    """The metrics.jsonl of a run, if it is one that can be read."""
    path = folder / "metrics.jsonl"
    try:
        state = path.lstat()
    except OSError:
        raise UserError(
            f"{folder.name} has no metrics.jsonl yet; a run writes the first row after train.log_every steps"
        ) from None
    if not stat.S_ISREG(state.st_mode):
        raise UserError(f"the metrics.jsonl of {folder.name} is no regular file")
    if state.st_size > MAX_LOG_BYTES:
        raise UserError(f"the metrics.jsonl of {folder.name} has {state.st_size:,} bytes, more than the {MAX_LOG_BYTES:,} that "
                        "are read; raise train.log_every")  # fmt: skip
    return path


def _detect_entry(files: set[str], folder: Path) -> str | None:
    if CORPUS_TOKENS in files:
        return "corpus"
    if "race.json" in files:
        return "race"
    if "front.json" in files:
        return "compress"
    return "run" if "metrics.jsonl" in files or (folder / "state" / "run.json").is_file() else None


def _modified(folder: Path, names: Sequence[str]) -> float:
    try:
        return max((folder / name).lstat().st_mtime for name in names) if names else folder.lstat().st_mtime
    except OSError:
        return 0.0
