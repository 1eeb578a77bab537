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
from ..train.config import TrainConfig
from ..train.trainer import Trainer
from .step import model_bytes
from .time import Throughput

WARMUP_STEPS = 2  # steps that are not timed: the first compiles, the second still meets cold memory
MIN_TIMED_STEPS = 3  # steps that are
SMALL_BATCH_TOKENS = 1024  # tokens of a first look on a CPU, where a whole update may take minutes
MAX_GPU_ACCUMULATION = 8  # micro-batches of an update, at most, on a GPU

BatchSource = Callable[[int], AbstractContextManager[Callable[[int], Batch]]]  # tokens of a micro-batch -> k -> micro-batch k


class BenchmarkSpec(NamedTuple):
    """What is measured: `model()` is a new one each time."""

    build_model: Callable[[], Model]
    objective: ObjectiveConfig
    train: TrainConfig
    open_batches: BatchSource
    max_length: int  # the longest sequence
    is_gpu: bool


class _EnoughSteps(Exception):
    pass


def measure_throughput(spec: BenchmarkSpec, seconds: float) -> Throughput:
    """The pace of the whole update; one that would take too long is told from two smaller ones."""
    train = spec.train
    if spec.is_gpu:
        gathered = min(train.accumulate, MAX_GPU_ACCUMULATION)
        return _extrapolate(_time_training(spec, train.batch_tokens, gathered, seconds), None, train.accumulate / gathered)
    small = min(train.batch_tokens, max(SMALL_BATCH_TOKENS, spec.max_length))
    first = _time_training(spec, small, 1, seconds / 4)
    whole = train.batch_tokens * train.accumulate / first.update_tokens
    if whole * first.update_seconds * (WARMUP_STEPS + MIN_TIMED_STEPS) <= seconds:
        return _time_training(spec, train.batch_tokens, train.accumulate, seconds)
    affordable = int(first.update_tokens * seconds / first.update_seconds / (WARMUP_STEPS + MIN_TIMED_STEPS))
    if affordable < 2 * small:
        return _extrapolate(first, None, whole)
    second = _time_training(spec, min(train.batch_tokens, affordable), 1, seconds)
    return _extrapolate(second, first, train.batch_tokens * train.accumulate / second.update_tokens)


def _extrapolate(throughput: Throughput, smaller: Throughput | None, factor: float) -> Throughput:
    """An update of so many times the tokens: on the line through two paces, or in proportion to one."""
    slope = throughput.update_seconds / throughput.update_tokens
    if smaller and throughput.update_tokens > smaller.update_tokens:
        slope = min(
            slope,
            max(0.0, throughput.update_seconds - smaller.update_seconds) / (throughput.update_tokens - smaller.update_tokens),
        )
    more = throughput.update_tokens * (factor - 1)
    return throughput._replace(
        update_seconds=throughput.update_seconds + slope * more, update_tokens=throughput.update_tokens + more
    )


def _time_training(spec: BenchmarkSpec, batch_tokens: int, gradient_accumulation_steps: int, seconds: float) -> Throughput:
    train = msgspec.structs.replace(
        spec.train, steps=10**9, epochs=None, minutes=None, batch_tokens=batch_tokens, accumulate=gradient_accumulation_steps, stop=0, eval_every=0,
        save_every=10**9, tensorboard=False, spike=0.0,
    )  # fmt: skip
    watch = _StepTimer(seconds)
    with TemporaryDirectory(prefix="bertsmith-plan-") as folder, spec.open_batches(batch_tokens) as batch:
        if spec.is_gpu:
            gc.collect()  # a trainer before this one
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model = spec.build_model()
        model.set_gradient_checkpointing(train.recompute)
        trainer = Trainer(model, spec.objective, train, Path(folder), seed=0, on_step=watch.on_step, quiet=True)
        watch.start()
        with suppress(_EnoughSteps):
            trainer.fit(lambda k, done: watch.on_batch(batch(k)))
        peak = torch.cuda.max_memory_allocated() if spec.is_gpu else None
        return watch.compute_throughput(model_bytes(model), _time_evaluation(trainer, batch(0)), peak)


class _StepTimer:
    """When each step of a run ended, and how much it had read."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.first_batch_time = seconds, 0.0
        self.step_times: list[float] = []  # the beginning, then the end of each step
        self.tokens: list[float] = [0.0]

    def start(self) -> None:
        self.step_times.append(time.monotonic())

    def on_batch(self, batch: Batch) -> Batch:
        self.first_batch_time = self.first_batch_time or time.monotonic()  # until then the trainer saved its first checkpoint
        return batch

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.step_times.append(time.monotonic())
        self.tokens.append(metrics["tokens"])
        if step >= WARMUP_STEPS + MIN_TIMED_STEPS and self.step_times[-1] - self.step_times[WARMUP_STEPS] > self.seconds:
            raise _EnoughSteps

    def compute_throughput(self, weight_bytes: int, eval_seconds_per_token: float, peak_memory: int | None) -> Throughput:
        timed, read = self.step_times[WARMUP_STEPS:], self.tokens[WARMUP_STEPS + 1 :]
        update = (timed[-1] - timed[0]) / len(read)
        start = max(0.0, timed[0] - self.first_batch_time - WARMUP_STEPS * update)
        return Throughput(
            update,
            sum(read) / len(read),
            start,
            eval_seconds_per_token,
            (self.first_batch_time - self.step_times[0]) / weight_bytes,
            peak_memory,
        )


def _time_evaluation(trainer: Trainer, batch: Batch) -> float:
    """Seconds a token that is only read; the first time may compile."""
    for _ in range(2):
        began = time.monotonic()
        trial.evaluate(trainer.objective, [batch], trainer.prepared)
    return (time.monotonic() - began) / batch.num_tokens
