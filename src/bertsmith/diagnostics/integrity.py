"""Integrity checks of a folder: checksums, special tokens of the tokenizer, NaN weights, interrupted jobs.

Also loads the newest intact checkpoint of an unfinished run.
"""

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

INTERRUPTED = "stopped half-way"


def check_manifest(folder: Path) -> Iterator[Finding]:
    """Files that do not match the checksums of the manifest."""
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
    """(tokenizer, []), or (None, findings) if it cannot be used."""
    try:
        return Tokenizer.load(folder / "tokenizer.json"), []
    except UserError as error:
        no_mask = "has no [MASK]" in str(error)
        name = "masks missing" if no_mask else "wrong vocabulary: tokens missing"
        means = "no word can be hidden, so none can be asked for" if no_mask else "texts cannot be read as BERT reads them"
        way_out = "add that line to the vocabulary, or train a tokenizer, and prepare the text again with it"
        return None, [Finding(name, "problem", str(error).split(";")[0], means, way_out, "tokenizer=FOLDER")]


def check_finite_weights(weights: dict[str, Tensor], learning_rate: float | None) -> Iterator[Finding]:
    """Weights with NaN or infinity; `learning_rate` is that of the run, for the advice."""
    non_finite = [name for name, weight in weights.items() if weight.is_floating_point() and not weight.isfinite().all()]
    if non_finite:
        yield Finding(
            "weights lost", "problem",
            f"{len(non_finite)} of {len(weights)} tensors hold NaN or infinity, {non_finite[0]} among them",
            "an update ruined the weights: every answer of this model is NaN",
            "begin again, or from an older checkpoint, at a lower learning rate; where it was fp16, take bf16 or fp32",
            f"train.learning_rate={format_number(learning_rate / 10)}" if learning_rate else None,
        )  # fmt: skip


def check_prepare_finished(folder: Path) -> Iterator[Finding]:
    """A corpus whose `prepare` was interrupted or is still running."""
    if is_interrupted(folder) and not (folder / MANIFEST).exists():
        journal = read_json(folder.with_name(folder.name + ".part") / JOURNAL)
        yield Finding(
            INTERRUPTED, "problem", f"{journal.get('tokens', 0):,} tokens are noted, and the folder is not made",
            "`prepare` was interrupted, or still works: there is no corpus yet",
            "run the same `bertsmith prepare` again: it goes on where it was",
        )  # fmt: skip


def check_run_finished(folder: Path, log: TrainingLog | None) -> Iterator[Finding]:
    """A run that has not finished: still running, or interrupted."""
    saved_step = max(map(checkpoint.checkpoint_step, checkpoint.list_checkpoints(folder / "state")), default=0)
    observation = f"its log ends at step {log.steps if log else 0:,}, its newest checkpoint is of step {saved_step:,}"
    if is_running(folder):
        yield Finding("still training", "note", observation, "the run goes on at this moment", "look again when it has ended")
        return
    hint = "; it may have failed for its learning rate: see there first" if log and log.rollbacks else ""
    yield Finding(
        INTERRUPTED, "problem", observation, "the run was killed, stopped or failed before its end: there is no model yet",
        f"run the same command again: it goes on from the checkpoint{hint}",
    )  # fmt: skip


def is_running(folder: Path) -> bool:
    """Whether a process holds the lock of `artifacts.lock_output` on the folder; does not disturb that process."""
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
    """Median over matrices of the standard deviation of their weights; stands in for an unknown initializer_range."""
    stds = sorted(float(weight.float().std()) for weight in weights.values() if weight.ndim == 2)
    return stds[len(stds) // 2] if stds else DEFAULT_INITIALIZER_RANGE


def load_newest_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of the newest intact checkpoint; empty if there is none."""
    for path in reversed(checkpoint.list_checkpoints(folder / "state")):
        if not list(check_manifest(path)) and (path / "model.safetensors").exists():
            return tensors.load_tensors(path / "model.safetensors")
    return {}
