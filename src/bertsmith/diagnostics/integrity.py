"""Files that are not what they were, weights that are no numbers, a tokenizer that lacks what BERT needs."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from .. import tensors
from ..artifacts import MANIFEST, read_json, verify_manifest
from ..corpus.build import JOURNAL, is_interrupted
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from ..train import checkpoint
from .finding import Finding, format_number
from .run_log import DEFAULT_INITIALIZER_RANGE, TrainingLog


def check_manifest(folder: Path) -> Iterator[Finding]:
    try:
        if (folder / MANIFEST).exists():
            verify_manifest(folder)
    except UserError as error:
        yield Finding(
            "damaged folder", "problem", str(error),
            "a file is not what it was when the folder was made: nothing else about it can be believed",
            "make the folder again, or copy it again, whole, from where it came",
        )  # fmt: skip


def load_tokenizer(folder: Path) -> tuple[Tokenizer | None, list[Finding]]:
    """The tokenizer of a folder; or none, and why it cannot be used."""
    try:
        return Tokenizer.load(folder / "tokenizer.json"), []
    except UserError as error:
        masks = "has no [MASK]" in str(error)
        name = "masks missing" if masks else "wrong vocabulary: tokens missing"
        means = "no word can be hidden, so none can be asked for" if masks else "texts cannot be read as BERT reads them"
        way_out = "add that line to the vocabulary, or train a tokenizer, and prepare the text again with it"
        return None, [Finding(name, "problem", str(error).split(";")[0], means, way_out, "tokenizer=FOLDER")]


def check_finite_weights(weights: dict[str, Tensor], learning_rate: float | None) -> Iterator[Finding]:
    bad = [name for name, weight in weights.items() if weight.is_floating_point() and not weight.isfinite().all()]
    if bad:
        yield Finding(
            "weights lost", "problem", f"{len(bad)} of {len(weights)} tensors hold NaN or infinity, {bad[0]} among them",
            "an update ruined the weights: every answer of this model is NaN",
            "begin again, or from an older checkpoint, at a lower rate; where it was fp16, take bf16 or fp32",
            f"train.rate={format_number(learning_rate / 10)}" if learning_rate else None,
        )  # fmt: skip


INTERRUPTED = "stopped half-way"


def check_prepare_finished(folder: Path) -> Iterator[Finding]:
    if is_interrupted(folder) and not (folder / MANIFEST).exists():
        note = read_json(folder.with_name(folder.name + ".part") / JOURNAL)
        yield Finding(
            INTERRUPTED, "problem", f"{note.get('tokens', 0):,} tokens are noted, and the folder is not made",
            "`prepare` was interrupted, or still works: there is no corpus yet",
            "run the same `bertsmith prepare` again: it goes on where it was",
        )  # fmt: skip


def check_run_finished(folder: Path, log: TrainingLog | None) -> Iterator[Finding]:
    """A run without its end: going on at this moment, or dead."""
    saved = max(map(checkpoint.checkpoint_step, checkpoint.list_checkpoints(folder / "state")), default=0)
    seen = f"its log ends at step {log.steps if log else 0:,}, its newest checkpoint is of step {saved:,}"
    if is_running(folder):
        yield Finding("still training", "note", seen, "the run goes on at this moment", "look again when it has ended")
        return
    failed = "; it may have failed for its learning rate: see there first" if log and log.rollbacks else ""
    yield Finding(
        INTERRUPTED, "problem", seen, "the run was killed, stopped or failed before its end: there is no model yet",
        f"run the same command again: it goes on from the checkpoint{failed}",
    )  # fmt: skip


def is_running(folder: Path) -> bool:
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


def compute_weight_std(weights: dict[str, Tensor]) -> float:
    """The usual size of the numbers in a matrix: what a step is measured by, where the recipe is not known."""
    found = sorted(float(weight.float().std()) for weight in weights.values() if weight.ndim == 2)
    return found[len(found) // 2] if found else DEFAULT_INITIALIZER_RANGE


def load_newest_weights(folder: Path) -> dict[str, Tensor]:
    """Of the last checkpoint that is whole; nothing, if there is none."""
    for path in reversed(checkpoint.list_checkpoints(folder / "state")):
        if not list(check_manifest(path)) and (path / "model.safetensors").exists():
            return tensors.load_tensors(path / "model.safetensors")
    return {}
