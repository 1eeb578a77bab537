"""Out of memory: smaller micro-batches, and more of them for an update, until a run fits; it stays the same run."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from msgspec.structs import replace

from ..artifacts import read_json, write_json
from ..config import Config, PosInt, from_dict, to_dict
from ..console import Console
from ..errors import UserError
from .config import TrainConfig
from .distributed import world_size

T = TypeVar("T")

# What torch's allocators, CUDA and cuBLAS say; only the first of them has an error of its own.
OOM_MESSAGES = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "status_alloc_failed")


class BatchSplit(Config, frozen=True):
    """How the tokens of an update are read."""

    batch_tokens: Annotated[PosInt, "tokens of one micro-batch"]
    accumulate: Annotated[PosInt, "micro-batches of one update"]


def retry_on_oom(train: TrainConfig, max_length: int, out: Path, run: Callable[[TrainConfig], T], console: Console) -> T:
    """What `attempt` gives with the largest micro-batch that fits; it must go on from the newest checkpoint in `out`.

    The split that fits is kept beside the checkpoints: a run that is killed and taken up again reads the same batches as
    one that is not. `forget` removes it.
    """
    train = _apply_saved_split(train, out, console)
    while True:
        try:
            return run(train)
        except (RuntimeError, MemoryError) as error:
            if not is_oom(error):
                raise
            smaller = _halve_micro_batch(train, max_length, out)
        _free_memory()  # out here: while an error is being handled, its frames hold all that the run held
        _save_batch_split(smaller, out)
        console.warn(
            f"out of memory with micro-batches of {train.batch_tokens:,} tokens; going on from the newest checkpoint with "
            f"{smaller.batch_tokens:,}, and train.accumulate={smaller.accumulate} instead of {train.accumulate}"
        )
        train = smaller


def is_oom(error: BaseException) -> bool:
    """Whether memory is what was missing."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error).lower() for words in OOM_MESSAGES)


def read_batch_split(out: Path) -> dict[str, int]:
    """`batch_tokens` and `accumulate` as they had to be; nothing, where they could stay as given."""
    path = _batch_split_path(out)
    return to_dict(from_dict(BatchSplit, read_json(path), str(path))) if path.exists() else {}


def remove_batch_split(out: Path) -> None:
    """For a run that is done."""
    _batch_split_path(out).unlink(missing_ok=True)


def _batch_split_path(out: Path) -> Path:
    return out / "state" / "split.json"


def _apply_saved_split(train: TrainConfig, out: Path, console: Console) -> TrainConfig:
    if split := read_batch_split(out):
        train = replace(train, **split)
        console.info(
            f"micro-batches of {train.batch_tokens:,} tokens and train.accumulate={train.accumulate}: more did not fit"
        )
    return train


def _halve_micro_batch(train: TrainConfig, max_length: int, out: Path) -> TrainConfig:
    """As many tokens an update, in twice as many micro-batches; refused where a sequence would not fit into one."""
    smaller = replace(train, batch_tokens=train.batch_tokens // 2, accumulate=2 * train.accumulate)
    have = f"out of memory with micro-batches of {train.batch_tokens:,} tokens"
    another = f"with another out, or once {out / 'state'} is removed"
    if smaller.batch_tokens < max_length:
        raise UserError(f"{have}, which cannot be halved: a sequence may have {max_length:,}; give train.recompute=true, a shorter "
                       f"length or a smaller model, {another}")  # fmt: skip
    if world_size() > 1:  # the others wait for this one in the middle of a step
        raise UserError(f"{have}, and several processes do not lower them by themselves; give train.batch_tokens="
                       f"{smaller.batch_tokens} train.accumulate={smaller.accumulate}, {another}")  # fmt: skip
    return smaller


def _save_batch_split(train: TrainConfig, out: Path) -> None:
    if _batch_split_path(out).parent.is_dir():  # without a checkpoint there is no run yet to be taken up
        write_json(_batch_split_path(out), to_dict(BatchSplit(batch_tokens=train.batch_tokens, accumulate=train.accumulate)))


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
