"""`bertsmith verify`: compare every file of a folder with the checksums that were recorded when it was written."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from ..artifacts import MANIFEST, check_files, detect_kind, list_unsealed, resolve_path
from ..config import Config
from ..console import Console
from ..errors import UserError

NAMES_SHOWN = 20  # files without a checksum that are printed; --json has all


class Recipe(Config, frozen=True):
    """The folder to verify."""

    folder: Annotated[
        str, "a tokenizer, corpus, model, run, report or export, or a folder of these; also as `bertsmith verify FOLDER`"
    ]


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Check each folder inside that has a manifest, and return what was damaged and what no manifest lists."""
    console, root = Console(quiet), resolve_path(recipe.folder, "folder")
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; give one that bertsmith wrote")
    sealed = [Path(parent) for parent, _, names in os.walk(root) if MANIFEST in names]
    with console.progress_bar(f"verifying {root}", "bytes") as bar:
        progress = Progress(bar, sum(map(_count_bytes, sealed)))
        folders = [_check_folder(folder, progress) for folder in sorted({root, *sealed})]
    for folder in folders:
        _print_folder(folder, console, is_all=not sealed)
    totals = {key: sum(folder[key] for folder in folders) for key in ("files", "bytes")}
    num_damaged = sum(len(folder["damaged"]) for folder in folders)
    return {"folder": str(root), "intact": bool(sealed) and not num_damaged, **totals, "damaged": num_damaged,
            "folders": folders}  # fmt: skip


def code(result: dict[str, Any]) -> int:
    """Exit code of the command: 1 if a file is damaged, or if there is nothing to verify against."""
    return 0 if result["intact"] else 1


class Progress:
    """Bytes that were checked in all folders."""

    def __init__(self, update: Callable[[int, int], None], total: int) -> None:
        self._update, self._total, self._done = update, total, 0

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._update(self._done, self._total)


def _check_folder(folder: Path, progress: Progress) -> dict[str, Any]:
    """One row of the result: the files that the manifest lists, those that differ, and the others."""
    report: dict[str, Any] = {"folder": str(folder), "kind": None, "files": 0, "bytes": 0, "damaged": [], "unsealed": []}
    try:
        for check in check_files(folder) if (folder / MANIFEST).exists() else ():
            report["files"] += 1
            report["bytes"] += check.bytes
            report["damaged"] += [{"file": check.name, "problem": check.problem}] if check.problem else []
            progress.add(check.bytes)
        report["unsealed"] = list_unsealed(folder)
    except UserError as error:
        report["damaged"].append({"file": MANIFEST, "problem": str(error)})
    with suppress(UserError):  # of a damaged config.json, which is reported as such
        report["kind"] = detect_kind(folder)
    return report


def _count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _print_folder(folder: dict[str, Any], console: Console, is_all: bool) -> None:
    """is_all: no folder has a manifest."""
    name = f"{folder['folder']} ({folder['kind']})" if folder["kind"] else folder["folder"]
    for damage in folder["damaged"]:
        console.warn(f"{name}: {damage['file']}: {damage['problem']}")
    if is_all:
        console.warn(f"{name} has no {MANIFEST}, so nothing tells whether its files are intact")
    elif folder["files"]:
        state = f"{len(folder['damaged'])} damaged" if folder["damaged"] else "intact"
        console.info(f"{name}: {folder['files']} files, {folder['bytes']:,} bytes: {state}")
    if names := folder["unsealed"]:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        console.info(f"{name}: without a checksum: {', '.join(names[:NAMES_SHOWN])}{more}")
