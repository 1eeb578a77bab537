"""How fast this machine is: the very training, begun in a folder that is thrown away, for some seconds."""

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import torch

from ..model.batch import Batch
from ..model.model import Model
from ..objectives import ObjectiveConfig
from ..train import step as trial
from ..train.config import Train
from ..train.trainer import Trainer
from .step import size
from .time import Pace

WARM = 2  # steps that are not timed: the first compiles, the second still meets cold memory
LEAST = 3  # steps that are
SMALL = 1024  # tokens of a first look on a CPU, where a whole update may take minutes
GATHERED = 8  # micro-batches of an update, at most, on a GPU

Source = Callable[[int], AbstractContextManager[Callable[[int], Batch]]]  # tokens of a micro-batch -> k -> micro-batch k


class Run(NamedTuple):
    """What is measured: `model()` is a new one each time."""

    model: Callable[[], Model]
    objective: ObjectiveConfig
    train: Train
    batches: Source
    length: int  # the longest sequence
    gpu: bool


class _Enough(Exception):
    pass


def measured(run: Run, seconds: float) -> Pace:
    """The pace of the whole update; one that would take too long is told from two smaller ones."""
    train = run.train
    if run.gpu:
        gathered = min(train.accumulate, GATHERED)
        return _grown(_timed(run, train.batch_tokens, gathered, seconds), None, train.accumulate / gathered)
    small = min(train.batch_tokens, max(SMALL, run.length))
    first = _timed(run, small, 1, seconds / 4)
    whole = train.batch_tokens * train.accumulate / first.tokens
    if whole * first.update * (WARM + LEAST) <= seconds:
        return _timed(run, train.batch_tokens, train.accumulate, seconds)
    affordable = int(first.tokens * seconds / first.update / (WARM + LEAST))
    if affordable < 2 * small:
        return _grown(first, None, whole)
    second = _timed(run, min(train.batch_tokens, affordable), 1, seconds)
    return _grown(second, first, train.batch_tokens * train.accumulate / second.tokens)


def _grown(pace: Pace, smaller: Pace | None, times: float) -> Pace:
    """An update of so many times the tokens: on the line through two paces, or in proportion to one."""
    slope = pace.update / pace.tokens
    if smaller and pace.tokens > smaller.tokens:
        slope = min(slope, max(0.0, pace.update - smaller.update) / (pace.tokens - smaller.tokens))
    more = pace.tokens * (times - 1)
    return pace._replace(update=pace.update + slope * more, tokens=pace.tokens + more)


def _timed(run: Run, tokens: int, accumulate: int, seconds: float) -> Pace:
    train = msgspec.structs.replace(
        run.train, steps=10**9, epochs=None, minutes=None, batch_tokens=tokens, accumulate=accumulate, stop=0, eval_every=0,
        save_every=10**9, tensorboard=False, spike=0.0,
    )  # fmt: skip
    watch = _Watch(seconds)
    with TemporaryDirectory(prefix="bertsmith-plan-") as folder, run.batches(tokens) as batch:
        if run.gpu:
            gc.collect()  # a trainer before this one
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model = run.model()
        model.recompute(train.recompute)
        trainer = Trainer(model, run.objective, train, Path(folder), seed=0, on_step=watch.stepped, quiet=True)
        watch.begin()
        with suppress(_Enough):
            trainer.fit(lambda k, done: watch.asked(batch(k)))
        peak = torch.cuda.max_memory_allocated() if run.gpu else None
        return watch.pace(size(model), _judged(trainer, batch(0)), peak)


class _Watch:
    """When each step of a run ended, and how much it had read."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.first_asked = seconds, 0.0
        self.ticks: list[float] = []  # the beginning, then the end of each step
        self.tokens: list[float] = [0.0]

    def begin(self) -> None:
        self.ticks.append(time.monotonic())

    def asked(self, batch: Batch) -> Batch:
        self.first_asked = self.first_asked or time.monotonic()  # until then the trainer saved its first checkpoint
        return batch

    def stepped(self, step: int, row: dict[str, float]) -> None:
        self.ticks.append(time.monotonic())
        self.tokens.append(row["tokens"])
        if step >= WARM + LEAST and self.ticks[-1] - self.ticks[WARM] > self.seconds:
            raise _Enough

    def pace(self, weights: int, judged: float, peak: int | None) -> Pace:
        timed, read = self.ticks[WARM:], self.tokens[WARM + 1 :]
        update = (timed[-1] - timed[0]) / len(read)
        start = max(0.0, timed[0] - self.first_asked - WARM * update)
        return Pace(update, sum(read) / len(read), start, judged, (self.first_asked - self.ticks[0]) / weights, peak)


def _judged(trainer: Trainer, batch: Batch) -> float:
    """Seconds a token that is only read; the first time may compile."""
    for _ in range(2):
        began = time.monotonic()
        trial.judged(trainer.objective, [batch], trainer.prepared)
    return (time.monotonic() - began) / batch.tokens
