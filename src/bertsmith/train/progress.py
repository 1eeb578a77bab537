"""How far a run has come, in values that JSON holds."""

from typing import Any

import msgspec

from ..errors import BadInput


class Progress(msgspec.Struct):
    """With the tensors beside it, everything that the next step depends on."""

    step: int = 0  # updates behind us, skipped ones too
    jump: int = 0  # updates whose micro-batches are left out, since they ended in a rollback
    rate_factor: float = 1.0  # halved by each rollback
    rollbacks: int = 0
    skipped: int = 0
    tokens: int = 0  # read by the model so far
    rate: float = 0.0  # of the last step
    loss: float | None = None  # of the last row of the log
    interval: dict[str, tuple[float, float]] = {}  # sums and counts since that row
    norms: list[float] = []  # the guard's history
    bad: int = 0  # and its bad updates in a row
    trials: dict[str, dict[str, float | None]] = {}  # of the last evaluation
    judged_at: int = -1  # its step
    best: float | None = None  # score of an evaluation
    best_step: int = -1  # and its step, by which its weights are kept
    stale: int = 0  # evaluations since
    done: bool = False
    elapsed: float = 0.0  # seconds
    pace: float = 0.0  # seconds a step takes
    lost: float = 0.0  # seconds of starting up, in all sittings
    metrics_bytes: int = 0
    scaler: dict[str, Any] = {}
    fingerprint: str = ""


def read(facts: dict[str, Any], place: str) -> Progress:
    try:
        return msgspec.convert(facts, Progress)
    except msgspec.ValidationError as error:
        raise BadInput(f"{place} is not progress that this version can read: {error}") from None


def plain(progress: Progress) -> dict[str, Any]:
    return dict(msgspec.to_builtins(progress))
