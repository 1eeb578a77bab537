"""Output folder of a training run: identified by a hash of recipe and inputs, locked while written, published at the end."""

import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .artifacts import MANIFEST, check_writable, content_hash, fingerprint, lock_output, read_json, resolve_path, write_manifest
from .config import Config, to_dict
from .console import Console
from .errors import UserError
from .model import checkpoint
from .model.model import Model
from .tokenization.tokenizer import Tokenizer
from .train.distributed import world_size

# Keys of [train] that may change when a run resumes: they set how the work is done. (Another device may round differently.)
RUN_ID_EXCLUDED = ("workers", "device", "save_total_limit", "save_every", "eval_every", "log_every", "tensorboard")


def compute_run_id(recipe: Config, **paths: str | None) -> str:
    """Hash of everything that determines the result; `paths` (by dotted key) enter with their content hash, not their path."""
    values = to_dict(recipe)
    # early stopping and checkpoint averaging make these intervals affect the result
    included = ["eval_every"] * bool(values["train"]["early_stopping_patience"]) + ["save_every"] * bool(
        values["train"]["average_checkpoints"]
    )
    excluded = [name for name in RUN_ID_EXCLUDED if name not in included]
    values["train"] = {name: value for name, value in values["train"].items() if name not in excluded}
    for name, location in paths.items():
        *parents, last = name.split(".")
        reduce(dict.__getitem__, parents, values)[last] = location and _content_or_path(resolve_path(location, name))
    return fingerprint({name: value for name, value in values.items() if name != "out"})


@contextmanager
def open_run(out: Path, run_id: str, console: Console) -> Iterator[dict[str, Any] | None]:
    """Locks the folder; yields the stored result if the same recipe has finished there, None if there is work to do."""
    if world_size() > 1:  # all ranks share one folder, so no lock
        yield _read_finished_result(out, run_id, console)
        return
    with lock_output(out):
        yield _read_finished_result(out, run_id, console)


def command_line() -> list[str]:
    """sys.argv with the bare name of the program, for card.json."""
    program = Path(sys.argv[0]).name
    return ["bertsmith" if program == "__main__.py" else program, *sys.argv[1:]]


def publish(
    out: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], record: dict[str, Any], recipe: Config
) -> None:
    """Write the finished model; the manifest, written last, marks it complete. Training state is removed."""
    versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    card |= {"command": command_line(), "versions": versions, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record |= {"recipe": to_dict(recipe), "tokenizer_fingerprint": tokenizer.fingerprint, "version": __version__}
    checkpoint.write_files(out, model, tokenizer, card, record)
    weights = [path.name for path in out.glob("model*.safetensors*")]
    write_manifest(out, ["config.json", "card.json", "tokenizer.json", "metrics.jsonl", *weights])
    _remove_state(out)


def read_family(source: Path) -> dict[str, str]:
    """{"family": ...} of a checkpoint, to copy into the config.json of a model derived from it; {} if it has none."""
    family = read_json(source / "config.json").get("family")
    return {"family": family} if family else {}


def _read_finished_result(out: Path, run_id: str, console: Console) -> dict[str, Any] | None:
    if not (out / MANIFEST).exists():
        check_writable(out, "state/step-*", "state/counts", "seeds")
        return None
    card = read_json(out / "card.json")
    if card.get("identity") != run_id:
        raise UserError(f"{out} contains a model of another recipe; choose another out, or remove the folder")
    console.info(f"{out} already exists, created by the same recipe")
    _remove_state(out)  # left by a run killed between manifest and cleanup
    if "seeds" in card["result"]:
        shutil.rmtree(out / "seeds", ignore_errors=True)
    return {"out": str(out), "created": False, **card["result"]}


def _content_or_path(path: Path) -> str:
    return content_hash(path) or str(path)  # a missing path is reported by the stage that reads it


def _remove_state(out: Path) -> None:
    for step_folder in (out / "state").glob("step-*"):
        shutil.rmtree(step_folder)
    shutil.rmtree(out / "state" / "counts", ignore_errors=True)  # co-occurrence counts of GloVe
    for best_file in (out / "state").glob("best-*"):
        best_file.unlink()
    with suppress(OSError):
        (out / "state").rmdir()  # unless a user put files there
