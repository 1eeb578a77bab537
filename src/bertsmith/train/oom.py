"""Recovery from out of memory: halves the micro-batch and doubles gradient accumulation until the run fits."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from msgspec.structs import replace

from ..artifacts import read_object
from ..config import Config, PosInt, from_dict, to_dict
from ..console import Console
from ..errors import UserError
from ..runs import world_size
from ..writing import write_json
from .config import TrainConfig

T = TypeVar("T")

# Messages of torch's allocators, CUDA and cuBLAS; only CUDA's has an exception class of its own.
OOM_MESSAGES = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "status_alloc_failed")


class BatchSplit(Config, frozen=True):
    """Micro-batch size and gradient accumulation of an update."""

    batch_tokens: Annotated[PosInt, "tokens per micro-batch (per forward and backward pass)"]
    gradient_accumulation_steps: Annotated[PosInt, "micro-batches per optimizer update"]


def retry_on_oom(train: TrainConfig, max_length: int, out: Path, run: Callable[[TrainConfig], T], console: Console) -> T:
    """Calls `run(train)`, again with half the micro-batch after each out-of-memory error; returns its result.

    `run` must resume from the newest checkpoint in `out`. The split that fits is saved beside the checkpoints, so that a
    run that is killed and resumed reads the same batches. `remove_batch_split` deletes it.
    """
    train = _apply_saved_split(train, out, console)
    while True:
        try:
            return run(train)
        except (RuntimeError, MemoryError) as error:
            if not is_oom(error):
                raise
            smaller = _halve_micro_batch(train, max_length, out)
        _free_memory()  # outside `except`: the traceback keeps the tensors of the run alive
        _save_batch_split(smaller, out)
        console.warn(
            f"out of memory with train.batch_tokens={train.batch_tokens}; resuming from the last checkpoint with "
            f"train.batch_tokens={smaller.batch_tokens} train.gradient_accumulation_steps="
            f"{smaller.gradient_accumulation_steps}: the same tokens per update"
        )
        train = smaller


def is_oom(error: BaseException) -> bool:
    """Whether the error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(message in str(error).lower() for message in OOM_MESSAGES)


def read_batch_split(out: Path) -> dict[str, int]:
    """The saved `batch_tokens` and `gradient_accumulation_steps`; empty if they were never reduced."""
    path = _batch_split_path(out)
    return to_dict(from_dict(BatchSplit, read_object(path), str(path))) if path.exists() else {}


def remove_batch_split(out: Path) -> None:
    """Deletes the saved split, when the run is finished."""
    _batch_split_path(out).unlink(missing_ok=True)


def _batch_split_path(out: Path) -> Path:
    return out / "state" / "split.json"


def _apply_saved_split(train: TrainConfig, out: Path, console: Console) -> TrainConfig:
    if split := read_batch_split(out):
        train = replace(train, **split)
        console.info(
            f"resuming with train.batch_tokens={train.batch_tokens} train.gradient_accumulation_steps="
            f"{train.gradient_accumulation_steps}: larger micro-batches ran out of memory"
        )
    return train


def _halve_micro_batch(train: TrainConfig, max_length: int, out: Path) -> TrainConfig:
    """The same tokens per update in twice as many micro-batches; a UserError if a sequence would not fit into one."""
    smaller = replace(
        train, batch_tokens=train.batch_tokens // 2, gradient_accumulation_steps=2 * train.gradient_accumulation_steps
    )
    problem = f"out of memory with train.batch_tokens={train.batch_tokens}"
    restart = f"and use another `out`, or remove {out / 'state'} first"
    if smaller.batch_tokens < max_length:
        raise UserError(f"{problem}, which cannot be halved: sequences have up to {max_length:,} tokens; set "
                       f"train.gradient_checkpointing=true, a lower max_length or a smaller model, {restart}")  # fmt: skip
    if world_size() > 1:  # the other ranks wait in the middle of a step
        raise UserError(f"{problem}, which is not lowered automatically with several processes; set train.batch_tokens="
                       f"{smaller.batch_tokens} train.gradient_accumulation_steps={smaller.gradient_accumulation_steps}, "
                       f"{restart}")  # fmt: skip
    return smaller


def _save_batch_split(train: TrainConfig, out: Path) -> None:
    if _batch_split_path(out).parent.is_dir():  # without a checkpoint there is nothing to resume
        write_json(
            _batch_split_path(out),
            to_dict(BatchSplit(batch_tokens=train.batch_tokens, gradient_accumulation_steps=train.gradient_accumulation_steps)),
        )


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
