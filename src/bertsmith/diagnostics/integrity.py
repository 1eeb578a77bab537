"""Integrity checks of a folder: checksums, special tokens of the tokenizer, NaN weights, interrupted jobs.

Also loads the newest intact checkpoint of an unfinished run.
"""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from .. import runs, tensors
from ..artifacts import MANIFEST, read_object, verify_manifest
from ..corpus.build import JOURNAL, is_interrupted
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from ..writing import is_locked
from .finding import Finding, format_number
from .run_log import DEFAULT_INITIALIZER_RANGE, TrainingLog

INTERRUPTED = "interrupted"


def check_manifest(folder: Path) -> Iterator[Finding]:
    """Files that do not match the checksums of the manifest."""
    try:
        if (folder / MANIFEST).exists():
            verify_manifest(folder)
    except UserError as error:
        yield Finding(
            "damaged folder", "problem", str(error),
            "a file has changed since the folder was written, so nothing else was checked",
            "create the folder again, or copy it again from its source",
        )  # fmt: skip


def load_tokenizer(folder: Path) -> tuple[Tokenizer | None, list[Finding]]:
    """(tokenizer, []), or (None, findings) if it cannot be used."""
    try:
        return Tokenizer.load(folder / "tokenizer.json"), []
    except UserError as error:
        no_mask = "has no [MASK]" in str(error)
        name = "no masked tokens" if no_mask else "tokenizer: missing tokens"
        explanation = "no token can be masked" if no_mask else "texts cannot be encoded in the format of BERT"
        suggestion = "add the token to the vocabulary, or train a tokenizer, and prepare the text again with it"
        return None, [Finding(name, "problem", str(error).split(";")[0], explanation, suggestion, "tokenizer=FOLDER")]


def check_finite_weights(weights: dict[str, Tensor], learning_rate: float | None) -> Iterator[Finding]:
    """Weights with NaN or infinity; `learning_rate` is that of the run, for the advice."""
    non_finite = [name for name, weight in weights.items() if weight.is_floating_point() and not weight.isfinite().all()]
    if non_finite:
        yield Finding(
            "non-finite weights", "problem",
            f"{len(non_finite)} of {len(weights)} tensors have NaN or infinite values, such as {non_finite[0]}",
            "training diverged: every output of this model is NaN",
            "train again, or from an older checkpoint, with a lower learning rate, and with bf16 or fp32 instead of fp16",
            f"train.learning_rate={format_number(learning_rate / 10)}" if learning_rate else None,
        )  # fmt: skip


def check_prepare_finished(folder: Path) -> Iterator[Finding]:
    """A corpus whose `prepare` was interrupted or is still running."""
    if is_interrupted(folder) and not (folder / MANIFEST).exists():
        journal = read_object(Path(f"{folder}.part") / JOURNAL)
        yield Finding(
            INTERRUPTED, "problem", f"{journal.get('tokens', 0):,} tokens were written, and the corpus is not finished",
            "`prepare` was interrupted, or is still running",
            "run the same `bertsmith prepare` command again to resume",
        )  # fmt: skip


def check_run_finished(folder: Path, log: TrainingLog | None) -> Iterator[Finding]:
    """A run that has not finished: still running, or interrupted."""
    saved_step = max(map(runs.checkpoint_step, runs.list_checkpoints(folder / "state")), default=0)
    observation = f"the log ends at step {log.steps if log else 0:,}, the last checkpoint is of step {saved_step:,}"
    if is_locked(folder):
        yield Finding(
            "still training", "note", observation, "the run is in progress", "run `bertsmith doctor` again when it has finished"
        )
        return
    hint = (
        "; its rollbacks suggest that the learning rate is too high: see the other findings first"
        if log and log.rollbacks
        else ""
    )
    yield Finding(
        INTERRUPTED, "problem", observation, "the run was killed, interrupted or failed: there is no model yet",
        f"run the same command again to resume from the checkpoint{hint}",
    )  # fmt: skip


def compute_weight_std(weights: dict[str, Tensor]) -> float:
    """Median over matrices of the standard deviation of their weights; stands in for an unknown initializer_range."""
    stds = sorted(float(weight.float().std()) for weight in weights.values() if weight.ndim == 2)
    return stds[len(stds) // 2] if stds else DEFAULT_INITIALIZER_RANGE


def load_newest_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of the newest intact checkpoint; empty if there is none."""
    for path in reversed(runs.list_checkpoints(folder / "state")):
        if not list(check_manifest(path)) and (path / "model.safetensors").exists():
            return tensors.load_tensors(path / "model.safetensors")
    return {}
