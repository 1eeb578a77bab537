"""Work that did not come to its end: a preparation or a run that was interrupted, or that still goes on."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from .. import tensors
from ..artifacts import MANIFEST, read_json
from ..corpus.build import JOURNAL, begun
from ..train import state
from .course import Course
from .damage import damaged
from .finding import Finding
from .run import DEVIATION

NAME = "stopped half-way"


def unprepared(folder: Path) -> Iterator[Finding]:
    if begun(folder) and not (folder / MANIFEST).exists():
        note = read_json(folder.with_name(folder.name + ".part") / JOURNAL)
        yield Finding(
            NAME, "problem", f"{note.get('tokens', 0):,} tokens are noted, and the folder is not made",
            "`prepare` was interrupted, or still works: there is no corpus yet",
            "run the same `bertsmith prepare` again: it goes on where it was",
        )  # fmt: skip


def stopped(folder: Path, course: Course | None) -> Iterator[Finding]:
    """A run without its end: going on at this moment, or dead."""
    saved = max(map(state.number, state.checkpoints(folder / "state")), default=0)
    seen = f"its log ends at step {course.steps if course else 0:,}, its newest checkpoint is of step {saved:,}"
    if running(folder):
        yield Finding("still training", "note", seen, "the run goes on at this moment", "look again when it has ended")
        return
    failed = "; it may have failed for its learning rate: see there first" if course and course.rollbacks else ""
    yield Finding(
        NAME, "problem", seen, "the run was killed, stopped or failed before its end: there is no model yet",
        f"run the same command again: it goes on from the checkpoint{failed}",
    )  # fmt: skip


def running(folder: Path) -> bool:
    """Somebody holds the folder, as `artifacts.claimed` does; asking takes nothing from him."""
    lock = folder.absolute().with_name(f".{folder.absolute().name}.lock")
    if not lock.exists():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def deviation(weights: dict[str, Tensor]) -> float:
    """The usual size of the numbers in a matrix: what a step is measured by, where the recipe is not known."""
    found = sorted(float(weight.float().std()) for weight in weights.values() if weight.ndim == 2)
    return found[len(found) // 2] if found else DEVIATION


def newest_weights(folder: Path) -> dict[str, Tensor]:
    """Of the last checkpoint that is whole; nothing, if there is none."""
    for path in reversed(state.checkpoints(folder / "state")):
        if not list(damaged(path)) and (path / "model.safetensors").exists():
            return tensors.load(path / "model.safetensors")
    return {}
