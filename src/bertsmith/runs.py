"""A resumable training run: its folder, locked while written, its identity, checkpoints, stop signals and publication.

The Trainer and the training of word vectors both use it. It knows nothing of models: what is saved are tensors by name.
"""

import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import __version__, artifacts
from .artifacts import MANIFEST, content_hash, fingerprint, read_object, resolve_path, write_manifest
from .config import Config, to_dict
from .console import Console
from .errors import Interrupted, UserError
from .signals import RESUME_HINT
from .tensors import load_tensors, save_tensors
from .writing import check_work_folders, check_writable, lock_output, remove_temps, write_json

RUN_FILE, STATUS_FILE = "run.json", "status.json"  # in state/, while a run trains
PROGRESS_FILE = "progress.json"  # of a checkpoint: everything but its tensors

# Keys of [train] that may change when a run resumes: they set how the work is done. (Another device may round differently.)
WEIGHT_PATTERNS = ("model*.safetensors*", "adapter.safetensors", "*.onnx")  # of what `write_model` writes
RUN_ID_EXCLUDED = ("workers", "device", "save_total_limit", "save_every", "eval_every", "log_every", "tensorboard")

WriteModel = Callable[[Path, dict[str, Any], dict[str, Any]], None]  # folder, card, and what config.json records of the run


class Checkpoint(NamedTuple):
    """A loaded checkpoint."""

    folder: Path
    tensors: dict[str, dict[str, Tensor]]  # by file, such as model and optimizer
    progress: dict[str, Any]  # contents of progress.json


@dataclass(frozen=True)
class Run:
    """A run that can be killed at any time: the same command resumes it from the newest checkpoint, `state/step-N`.

    identity: hash of everything that determines the result (`compute_run_id`); checkpoints of another one are refused.
    finished_result: the result stored in the folder, if the run has finished; there is nothing to do then.
    """

    folder: Path
    identity: str = ""
    console: Console = field(default_factory=Console)
    finished_result: dict[str, Any] | None = None

    @property
    def state(self) -> Path:
        """Folder of the checkpoints, removed by `publish`."""
        return self.folder / "state"

    @property
    def cache(self) -> Path:
        """Folder for what is computed once for a run, such as a teacher's predictions; removed by `publish`."""
        return self.state / "cache"

    def load_latest_checkpoint(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest intact checkpoint, or None if there is none; damaged ones are skipped with a warning."""
        checkpoint = _load_newest_intact(self.state, warn)
        if checkpoint:
            _check_identity(self.folder, checkpoint.progress, self.identity)
        return checkpoint

    def save_checkpoint(
        self, step: int, tensors: Mapping[str, dict[str, Tensor]], progress: dict[str, Any], save_total_limit: int
    ) -> None:
        """Writes `NAME.safetensors` for each key of `tensors`, and progress.json, atomically; then removes old checkpoints.

        The newest `save_total_limit` checkpoints up to `step` remain. Later ones remain after a rollback, to be overwritten.
        """
        sync = save_total_limit == 1  # else the one before is on the disk, and serves after a power cut
        with artifacts.atomic_folder(self.state / f"step-{step}", sync=sync) as temp_folder:
            for name, group in tensors.items():
                # copies: safetensors refuses tensors that share memory
                copies = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in group.items()}
                save_tensors(copies, temp_folder / f"{name}.safetensors")
            write_json(temp_folder / PROGRESS_FILE, {**progress, "fingerprint": self.identity})
        for old in [path for path in list_checkpoints(self.state) if checkpoint_step(path) <= step][:-save_total_limit]:
            shutil.rmtree(old)
        remove_temps(self.state)  # left by a run that was killed while saving

    def interrupted(self, progress: str) -> Interrupted:
        """The error that ends a stopped run; progress: how far the saved checkpoint is, such as `step 12`."""
        return Interrupted(f"checkpoint saved at {progress}; {RESUME_HINT}")

    def publish(self, write_model: WriteModel, card: dict[str, Any], record: dict[str, Any], recipe: Config) -> None:
        """Writes the finished model; the manifest, written last, marks it complete. Checkpoints are removed.

        record: what config.json says of the run, besides the model, the recipe and the version.
        """
        versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
        date = datetime.now(UTC).isoformat(timespec="seconds")
        card |= {"identity": self.identity, "command": command_line(), "versions": versions, "date": date}
        write_model(self.folder, card, {**record, "recipe": to_dict(recipe), "version": __version__})
        weights = [path.name for pattern in WEIGHT_PATTERNS for path in self.folder.glob(pattern)]
        log = ["metrics.jsonl"] if (self.folder / "metrics.jsonl").exists() else []  # none if nothing was trained
        write_manifest(self.folder, ["config.json", "card.json", "tokenizer.json", *log, *weights])
        _remove_state(self.folder)


@contextmanager
def open_run(folder: Path, identity: str, console: Console) -> Iterator[Run]:
    """The run of a folder, which is locked inside the block."""
    if world_size() > 1:  # all ranks share one folder, so no lock
        check_work_folders(folder)
        yield Run(folder, identity, console, _read_finished_result(folder, identity, console))
        return
    with lock_output(folder):
        yield Run(folder, identity, console, _read_finished_result(folder, identity, console))


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


def list_checkpoints(state: Path) -> list[Path]:
    """Folders of complete checkpoints, oldest first."""
    paths = [path for path in state.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(paths, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    """N of a folder `step-N`."""
    return int(path.name.removeprefix("step-"))


def world_size() -> int:
    """Number of processes torchrun started; 1 without torchrun."""
    return int(environ.get("WORLD_SIZE", "1")) if "RANK" in environ else 1


def is_main_process() -> bool:
    """Whether this is rank 0 of torchrun, or the only process."""
    return world_size() == 1 or environ["RANK"] == "0"


def command_line() -> list[str]:
    """sys.argv with the bare name of the program, for card.json."""
    program = Path(sys.argv[0]).name
    return ["bertsmith" if program == "__main__.py" else program, *sys.argv[1:]]


def read_family(source: Path) -> dict[str, str]:
    """{"family": ...} of a checkpoint, to copy into the config.json of a model derived from it; {} if it has none."""
    family = read_object(source / "config.json").get("family")
    return {"family": family} if family else {}


def _check_identity(folder: Path, progress: Mapping[str, Any], identity: str) -> None:
    """Raise unless a checkpoint with this progress.json is of the same recipe."""
    if (saved := progress.get("fingerprint")) != identity:
        raise UserError(
            f"{folder} contains checkpoints of another recipe ({saved or '-'}, not {identity or '-'}); "
            f"choose another `out`, or remove {folder / 'state'} to start over"
        )


def _load_newest_intact(state: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    damage = ""
    for path in reversed(list_checkpoints(state)):
        try:
            return _load_checkpoint(path)
        except UserError as error:
            damage = damage or str(error)
            warn(f"{error}; trying the checkpoint before it")
    if damage:
        raise UserError(f"every checkpoint in {state} is damaged: {damage}; remove {state} to start over")
    return None


def _load_checkpoint(folder: Path) -> Checkpoint:
    try:
        artifacts.verify_manifest(folder)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / MANIFEST} is damaged") from None
    tensors = {path.stem: load_tensors(path) for path in sorted(folder.glob("*.safetensors"))}
    return Checkpoint(folder, tensors, read_object(folder / PROGRESS_FILE))


def _read_finished_result(out: Path, run_id: str, console: Console) -> dict[str, Any] | None:
    if not (out / MANIFEST).exists():
        check_writable(out, "state/step-*", "state/cache/*", "state/counts", f"state/{RUN_FILE}", "seeds")
        for checkpoint in reversed(list_checkpoints(out / "state")):
            with suppress(UserError):  # damaged: reported when it is loaded
                progress = read_object(checkpoint / PROGRESS_FILE)
                break
        else:
            return None
        _check_identity(out, progress, run_id)  # before any work, and before the folder is written to
        return None
    card = read_object(out / "card.json")
    if card.get("identity") != run_id:
        raise UserError(f"{out} contains a model of another recipe; choose another out, or remove the folder")
    console.info(f"{out} already exists, created by the same recipe")
    if is_main_process():  # left by a run killed between manifest and cleanup
        _remove_state(out)
    if "seeds" in artifacts.read_result(out):
        shutil.rmtree(out / "seeds", ignore_errors=True)
    return {"out": str(out), "created": False, **artifacts.read_result(out)}


def _content_or_path(path: Path) -> str:
    return content_hash(path) or str(path)  # a missing path is reported by the stage that reads it


def _remove_state(out: Path) -> None:
    for step_folder in (out / "state").glob("step-*"):
        shutil.rmtree(step_folder)
    shutil.rmtree(out / "state" / "counts", ignore_errors=True)  # co-occurrence counts of GloVe
    shutil.rmtree(out / "state" / "cache", ignore_errors=True)
    for file in (*(out / "state").glob("best-*"), out / "state" / RUN_FILE, out / "state" / STATUS_FILE):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        (out / "state").rmdir()  # unless a user put files there
