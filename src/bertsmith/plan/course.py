"""The course of a run: its steps and how long they take, evaluations and checkpoints counted in."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..train.recipe import Train
from .speed import Pace


class Phase(NamedTuple):
    length: int
    share: float  # of the run
    pace: Pace
    an_epoch: int | None  # micro-batches; None where there is no corpus


class Course(msgspec.Struct, frozen=True):
    steps: int
    tokens: int
    epochs: float | None  # None where there is no corpus
    tokens_per_second: float  # while it trains
    seconds: float  # all of it
    start: float  # of these, until the first update
    training: float
    judging: float
    saving: float


def followed(train: Train, phases: Sequence[Phase], eval_tokens: float, weights: int, checkpoint: int) -> Course:
    """`eval_tokens` are those of one evaluation, 0 where there is none; sizes are of what is saved before and after a step."""
    usual, first = sum(phase.share * phase.pace.update for phase in phases), phases[0].pace
    judging, saving, start = eval_tokens * first.judged, checkpoint * first.saved, first.start + weights * first.saved
    if train.steps is not None:
        steps = [train.steps * phase.share for phase in phases]
    else:
        often = (judging / train.eval_every if train.eval_every else 0.0) + saving / train.save_every
        left = max(60 * (train.minutes or 0) - start, usual) * usual / (usual + often)
        steps = [left * phase.share / phase.pace.update for phase in phases]
    whole = max(1, round(sum(steps)))
    training = sum(count * phase.pace.update for count, phase in zip(steps, phases, strict=True))
    tokens = sum(count * phase.pace.tokens for count, phase in zip(steps, phases, strict=True))
    judging *= -(-whole // train.eval_every) if train.eval_every else 1
    saving *= len(range(train.save_every, whole, train.save_every)) + 1  # the last step is saved whenever it comes
    return Course(
        steps=whole, tokens=round(tokens), epochs=_epochs(train, steps, phases), tokens_per_second=tokens / training,
        seconds=start + training + judging + saving, start=start, training=training, judging=judging, saving=saving,
    )  # fmt: skip


def _epochs(train: Train, steps: Sequence[float], phases: Sequence[Phase]) -> float | None:
    if any(phase.an_epoch is None for phase in phases):
        return None
    return sum(n * train.accumulate / (phase.an_epoch or 1) for n, phase in zip(steps, phases, strict=True))
