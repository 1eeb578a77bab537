"""Out of memory: smaller micro-batches, and more of them for an update, until a run fits; it stays the same run."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from msgspec.structs import replace

from ..artifacts import read_json, write_json
from ..config import Config, Count, parse, plain
from ..console import Screen
from ..errors import BadInput
from .config import Train
from .distributed import world

T = TypeVar("T")

# What torch's allocators, CUDA and cuBLAS say; only the first of them has an error of its own.
SAID = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "status_alloc_failed")


class Split(Config, frozen=True):
    """How the tokens of an update are read."""

    batch_tokens: Annotated[Count, "tokens of one micro-batch"]
    accumulate: Annotated[Count, "micro-batches of one update"]


def fitted(train: Train, longest: int, out: Path, attempt: Callable[[Train], T], screen: Screen) -> T:
    """What `attempt` gives with the largest micro-batch that fits; it must go on from the newest checkpoint in `out`.

    The split that fits is kept beside the checkpoints: a run that is killed and taken up again reads the same batches as
    one that is not. `forget` removes it.
    """
    train = _recalled(train, out, screen)
    while True:
        try:
            return attempt(train)
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            smaller = _halved(train, longest, out)
        _free()  # out here: while an error is being handled, its frames hold all that the run held
        _keep(smaller, out)
        screen.warn(
            f"out of memory with micro-batches of {train.batch_tokens:,} tokens; going on from the newest checkpoint with "
            f"{smaller.batch_tokens:,}, and train.accumulate={smaller.accumulate} instead of {train.accumulate}"
        )
        train = smaller


def ran_out(error: BaseException) -> bool:
    """Whether memory is what was missing."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error).lower() for words in SAID)


def lowered(out: Path) -> dict[str, int]:
    """`batch_tokens` and `accumulate` as they had to be; nothing, where they could stay as given."""
    path = _place(out)
    return plain(parse(Split, read_json(path), str(path))) if path.exists() else {}


def forget(out: Path) -> None:
    """For a run that is done."""
    _place(out).unlink(missing_ok=True)


def _place(out: Path) -> Path:
    return out / "state" / "split.json"


def _recalled(train: Train, out: Path, screen: Screen) -> Train:
    if split := lowered(out):
        train = replace(train, **split)
        screen.say(f"micro-batches of {train.batch_tokens:,} tokens and train.accumulate={train.accumulate}: more did not fit")
    return train


def _halved(train: Train, longest: int, out: Path) -> Train:
    """As many tokens an update, in twice as many micro-batches; refused where a sequence would not fit into one."""
    smaller = replace(train, batch_tokens=train.batch_tokens // 2, accumulate=2 * train.accumulate)
    have = f"out of memory with micro-batches of {train.batch_tokens:,} tokens"
    another = f"with another out, or once {out / 'state'} is removed"
    if smaller.batch_tokens < longest:
        raise BadInput(f"{have}, which cannot be halved: a sequence may have {longest:,}; give train.recompute=true, a shorter "
                       f"length or a smaller model, {another}")  # fmt: skip
    if world() > 1:  # the others wait for this one in the middle of a step
        raise BadInput(f"{have}, and several processes do not lower them by themselves; give train.batch_tokens="
                       f"{smaller.batch_tokens} train.accumulate={smaller.accumulate}, {another}")  # fmt: skip
    return smaller


def _keep(train: Train, out: Path) -> None:
    if _place(out).parent.is_dir():  # without a checkpoint there is no run yet to be taken up
        write_json(_place(out), plain(Split(batch_tokens=train.batch_tokens, accumulate=train.accumulate)))


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
