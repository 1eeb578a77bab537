"""Measure the training throughput of this machine: a few seconds of the real training loop in a temporary folder."""

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import torch

from ..console import Console
from ..model.batch import Inputs
from ..model.model import Model
from ..objectives import PretrainObjective
from ..runs import Run
from ..train import step
from ..train.config import TrainConfig
from ..train.objective import Batch
from ..train.setup import prepare
from ..train.trainer import Trainer
from .step import model_bytes
from .time import Throughput

WARMUP_STEPS = 2  # not timed: the first compiles, the second still has cold memory
MIN_TIMED_STEPS = 3
SMALL_BATCH_TOKENS = 1024  # of a first measurement on a CPU, where a full update may take minutes
MAX_GPU_ACCUMULATION = 8  # micro-batches per timed update on a GPU

BatchSource = Callable[[int], AbstractContextManager[Callable[[int], Batch[Inputs]]]]  # batch_tokens -> (index -> micro-batch)


class BenchmarkSpec(NamedTuple):
    """What to measure; `build_model()` returns a new model each time."""

    build_model: Callable[[], Model]
    objective: PretrainObjective
    train: TrainConfig
    open_batches: BatchSource
    max_length: int  # the longest sequence
    is_gpu: bool


class _EnoughSteps(Exception):
    pass


def measure_throughput(spec: BenchmarkSpec, seconds: float) -> Throughput:
    """Throughput of one update; one that would take too long is extrapolated from two smaller ones."""
    train = spec.train
    if spec.is_gpu:
        accumulation = min(train.gradient_accumulation_steps, MAX_GPU_ACCUMULATION)
        return _extrapolate(
            _time_training(spec, train.batch_tokens, accumulation, seconds),
            None,
            train.gradient_accumulation_steps / accumulation,
        )
    small_tokens = min(train.batch_tokens, max(SMALL_BATCH_TOKENS, spec.max_length))
    small_throughput = _time_training(spec, small_tokens, 1, seconds / 4)
    scale = train.batch_tokens * train.gradient_accumulation_steps / small_throughput.update_tokens
    if scale * small_throughput.update_seconds * (WARMUP_STEPS + MIN_TIMED_STEPS) <= seconds:
        return _time_training(spec, train.batch_tokens, train.gradient_accumulation_steps, seconds)
    affordable = int(
        small_throughput.update_tokens * seconds / small_throughput.update_seconds / (WARMUP_STEPS + MIN_TIMED_STEPS)
    )
    if affordable < 2 * small_tokens:
        return _extrapolate(small_throughput, None, scale)
    larger_throughput = _time_training(spec, min(train.batch_tokens, affordable), 1, seconds)
    return _extrapolate(
        larger_throughput,
        small_throughput,
        train.batch_tokens * train.gradient_accumulation_steps / larger_throughput.update_tokens,
    )


def _extrapolate(throughput: Throughput, smaller: Throughput | None, factor: float) -> Throughput:
    """Throughput of an update with `factor` times the tokens: linear through two measurements, or proportional to one."""
    seconds_per_token = throughput.update_seconds / throughput.update_tokens
    if smaller and throughput.update_tokens > smaller.update_tokens:
        seconds_per_token = min(
            seconds_per_token,
            max(0.0, throughput.update_seconds - smaller.update_seconds) / (throughput.update_tokens - smaller.update_tokens),
        )
    extra_tokens = throughput.update_tokens * (factor - 1)
    return throughput._replace(
        update_seconds=throughput.update_seconds + seconds_per_token * extra_tokens,
        update_tokens=throughput.update_tokens + extra_tokens,
    )


def _time_training(spec: BenchmarkSpec, batch_tokens: int, gradient_accumulation_steps: int, seconds: float) -> Throughput:
    train = msgspec.structs.replace(
        spec.train, steps=10**9, epochs=None, minutes=None, batch_tokens=batch_tokens,
        gradient_accumulation_steps=gradient_accumulation_steps, early_stopping_patience=0,
        eval_every=0, save_every=10**9, tensorboard=False, grad_spike_factor=0.0,
    )  # fmt: skip
    timer = _StepTimer(seconds)
    with TemporaryDirectory(prefix="bertsmith-plan-") as folder, spec.open_batches(batch_tokens) as get_batch:
        if spec.is_gpu:
            gc.collect()  # of an earlier trainer
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model = spec.build_model()
        model.set_gradient_checkpointing(train.gradient_checkpointing)
        run = Run(Path(folder), console=Console(quiet=True))
        trainer = Trainer(prepare(model, train), spec.objective, run, seed=0, on_step=timer.on_step)
        timer.start()
        with suppress(_EnoughSteps):
            trainer.fit(lambda k, done: timer.on_batch(get_batch(k)))
        peak_memory = torch.cuda.max_memory_allocated() if spec.is_gpu else None
        return timer.compute_throughput(model_bytes(model), _time_evaluation(trainer, get_batch(0)), peak_memory)


class _StepTimer:
    """Records the end time and the tokens of each step."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.first_batch_time = seconds, 0.0
        self.step_times: list[float] = []  # the start, then the end of each step
        self.tokens: list[float] = [0.0]

    def start(self) -> None:
        self.step_times.append(time.monotonic())

    def on_batch(self, batch: Batch[Inputs]) -> Batch[Inputs]:
        self.first_batch_time = self.first_batch_time or time.monotonic()  # before it, the trainer saved its first checkpoint
        return batch

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.step_times.append(time.monotonic())
        self.tokens.append(metrics["tokens"])
        if step >= WARMUP_STEPS + MIN_TIMED_STEPS and self.step_times[-1] - self.step_times[WARMUP_STEPS] > self.seconds:
            raise _EnoughSteps

    def compute_throughput(self, weight_bytes: int, eval_seconds_per_token: float, peak_memory: int | None) -> Throughput:
        times, tokens = self.step_times[WARMUP_STEPS:], self.tokens[WARMUP_STEPS + 1 :]
        update_seconds = (times[-1] - times[0]) / len(tokens)
        startup_seconds = max(0.0, times[0] - self.first_batch_time - WARMUP_STEPS * update_seconds)
        return Throughput(
            update_seconds,
            sum(tokens) / len(tokens),
            startup_seconds,
            eval_seconds_per_token,
            (self.first_batch_time - self.step_times[0]) / weight_bytes,
            peak_memory,
        )


def _time_evaluation(trainer: Trainer, batch: Batch[Inputs]) -> float:
    """Seconds per token of an evaluation; of two runs the second counts, since the first may compile."""
    for _ in range(2):
        start = time.monotonic()
        step.evaluate(trainer.setup, trainer.objective, [batch])
    return (time.monotonic() - start) / batch.num_tokens
