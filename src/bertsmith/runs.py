"""The folder of a run that trains: named by what decides its result, written by one run at a time, published whole."""

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

# What may differ when a run goes on: how the work is done. (Another kind of device rounds otherwise, all the same.)
RUN_ID_EXCLUDED = ("workers", "device", "keep", "save_every", "eval_every", "log_every", "tensorboard")


def compute_run_id(recipe: Config, **paths: str | None) -> str:
    """A name for all that decides the result; `contents` are known by what they hold, not by where they lie."""
    told = to_dict(recipe)
    fixed = ["eval_every"] * bool(told["train"]["stop"]) + ["save_every"] * bool(told["train"]["average"])  # decide the end
    free = [name for name in RUN_ID_EXCLUDED if name not in fixed]
    told["train"] = {name: value for name, value in told["train"].items() if name not in free}
    for name, place in paths.items():
        *path, last = name.split(".")
        reduce(dict.__getitem__, path, told)[last] = place and _content_or_path(resolve_path(place, name))
    return fingerprint({name: value for name, value in told.items() if name != "out"})


@contextmanager
def open_run(out: Path, run_id: str, console: Console) -> Iterator[dict[str, Any] | None]:
    """Holds the folder; yields what it has to tell if the same recipe made it already, None if there is work to do."""
    if world_size() > 1:  # ranks share one folder
        yield _read_finished_result(out, run_id, console)
        return
    with lock_output(out):
        yield _read_finished_result(out, run_id, console)


def command_line() -> list[str]:
    """The words that were typed, without where the program lies."""
    program = Path(sys.argv[0]).name
    return ["bertsmith" if program == "__main__.py" else program, *sys.argv[1:]]


def publish(
    out: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], record: dict[str, Any], recipe: Config
) -> None:
    """The finished folder; the manifest comes last and says so. The state it grew from goes."""
    versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    card |= {"command": command_line(), "versions": versions, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record |= {"recipe": to_dict(recipe), "tokenizer": tokenizer.fingerprint, "version": __version__}
    checkpoint.write_files(out, model, tokenizer, card, record)
    weights = [path.name for path in out.glob("model*.safetensors*")]
    write_manifest(out, ["config.json", "card.json", "tokenizer.json", "metrics.jsonl", *weights])
    _remove_state(out)


def read_family(source: Path) -> dict[str, str]:
    """The family that a folder says its model is of, for the record of a model that is made from it."""
    family = read_json(source / "config.json").get("family")
    return {"family": family} if family else {}


def _read_finished_result(out: Path, run_id: str, console: Console) -> dict[str, Any] | None:
    if not (out / MANIFEST).exists():
        check_writable(out, "state/step-*", "state/counts", "seeds")
        return None
    card = read_json(out / "card.json")
    if card.get("identity") != run_id:
        raise UserError(f"{out} holds a model made by another recipe; choose another out, or remove it")
    console.info(f"{out} is there already, made by the same recipe")
    _remove_state(out)  # of a run killed between its last two breaths
    if "seeds" in card["result"]:
        shutil.rmtree(out / "seeds", ignore_errors=True)
    return {"out": str(out), "made": False, **card["result"]}


def _content_or_path(path: Path) -> str:
    return content_hash(path) or str(path)  # what is not there is refused by the stage that needs it


def _remove_state(out: Path) -> None:
    for saved in (out / "state").glob("step-*"):
        shutil.rmtree(saved)
    shutil.rmtree(out / "state" / "counts", ignore_errors=True)  # of pairs of words
    for best in (out / "state").glob("best-*"):
        best.unlink()
    with suppress(OSError):
        (out / "state").rmdir()  # unless somebody put something there
