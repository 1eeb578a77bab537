"""Bytes, memory, latency and throughput of an artifact: each is loaded in a process of its own, and answers real examples.

Tokenization and decoding are included. Artifacts answer in turn, several rounds, so that a busy machine slows all of them.
"""

import re
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...inference.engines.base import Backend
from ...inference.predictor import load
from ...processes import WorkerPool
from ...reading import open_regular

MAX_SINGLE, MAX_BATCHED = 200, 512  # examples answered in a round, one by one and in batches
MAX_SECONDS = 10.0  # of each in a round; a slow model answers fewer
MIN_SINGLE, MIN_BATCHES = 20, 2
BATCH_SIZE = 32
WARMUP = 16


@dataclass(frozen=True)
class Measured:
    """What an artifact costs."""

    bytes: int  # of all files in its folder
    peak_memory: int  # bytes: highest resident memory of a process that loads it and answers
    latency_p50: float  # seconds for one example
    latency_p99: float
    throughput: float  # examples per second, 32 at a time


@dataclass(frozen=True)
class _Round:
    """One process: seconds of each single example, examples per second in batches, peak memory."""

    seconds: list[float]
    throughput: float
    peak_memory: int


def measure_all(folders: Sequence[Path], backend: Backend, examples: Sequence[Any], rounds: int) -> list[Measured]:
    """The costs of each folder, which take turns: percentiles over all rounds, the median throughput, the highest memory."""
    results: list[list[_Round]] = [[] for _ in folders]
    for _ in range(rounds):
        for folder, done in zip(folders, results, strict=True):
            with WorkerPool(1, _no_setup, ()) as pool:
                done.append(pool.submit(_measure, folder, backend, list(examples)).result())
    return [_summarize(folder, done) for folder, done in zip(folders, results, strict=True)]


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _summarize(folder: Path, rounds: Sequence[_Round]) -> Measured:
    seconds = np.concatenate([done.seconds for done in rounds])
    p50, p99 = (float(np.percentile(seconds, percent)) for percent in (50, 99))
    memory = max(done.peak_memory for done in rounds)
    return Measured(folder_bytes(folder), memory, p50, p99, median(done.throughput for done in rounds))


def _no_setup() -> None:
    """A worker needs none."""


def _measure(folder: Path, backend: Backend, examples: list[Any]) -> _Round:
    """In a process of its own."""
    predictor = load(str(folder), backend, "fp32")
    predictor.predict_examples(examples[:BATCH_SIZE])
    for example in examples[:WARMUP]:
        predictor.predict_examples([example])
    seconds, start = list[float](), time.perf_counter()
    for example in examples[:MAX_SINGLE]:
        before = time.perf_counter()
        predictor.predict_examples([example])
        seconds.append(time.perf_counter() - before)
        if len(seconds) >= MIN_SINGLE and time.perf_counter() - start > MAX_SECONDS:
            break
    num_done, start = 0, time.perf_counter()
    for first in range(0, min(len(examples), MAX_BATCHED), BATCH_SIZE):
        batch = examples[first : first + BATCH_SIZE]
        predictor.predict_examples(batch)
        num_done += len(batch)
        if num_done >= MIN_BATCHES * BATCH_SIZE and time.perf_counter() - start > MAX_SECONDS:
            break
    return _Round(seconds, num_done / (time.perf_counter() - start), peak_memory())


def peak_memory() -> int:
    """Highest resident memory of this process, in bytes.

    Linux: VmHWM, since ru_maxrss also counts what the parent had before the process began.
    """
    status = Path("/proc/self/status")
    if status.exists():
        with open_regular(status) as file:
            if match := re.search(rb"VmHWM:\s+(\d+) kB", file.read(1 << 16)):
                return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
