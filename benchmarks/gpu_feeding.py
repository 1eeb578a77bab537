"""How long a GPU's training waits for its batches: the share of a run's time spent asking the workers for the next one.

python -m benchmarks gpu_feeding corpus=FOLDER [model=bert-base] [length=128] [tokens=65536] [workers=12] [steps=150]

The trainer asks while the GPU still works on the batch before, so the share is an upper bound on what the GPU waits.
"""

import time
from typing import Any

from bertsmith import api
from bertsmith.corpus.collate import NumpyBatch
from bertsmith.corpus.loader import Prefetcher

from .material import BenchmarkInputs

WARMUP_FRACTION = 0.2  # of the steps, in which kernels are compiled and workers begin


class BatchWaitTimer:
    """Takes the time of every call for a batch, as long as it is entered."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, float]] = []  # when, and for how long
        self.original_call = Prefetcher.__call__

    def __enter__(self) -> "BatchWaitTimer":
        def call(prefetcher: Prefetcher, k: int, rows: Any) -> NumpyBatch:
            start = time.perf_counter()
            arrays = self.original_call(prefetcher, k, rows)
            self.waits.append((start, time.perf_counter() - start))
            return arrays

        Prefetcher.__call__ = call  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Prefetcher.__call__ = self.original_call  # type: ignore[assignment, method-assign]

    @property
    def wait_fraction(self) -> float:
        settled = self.waits[int(len(self.waits) * WARMUP_FRACTION) :]
        return sum(took for _, took in settled[:-1]) / (settled[-1][0] - settled[0][0])


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    train = {"steps": bench.int_option("steps", 150), "batch_tokens": bench.int_option("tokens", 65_536), "precision": "bf16"}
    train |= {"workers": bench.int_option("workers", 12), "save_every": 10**9}
    model, length = bench.options.get("model", "bert-base"), bench.int_option("length", 128)
    with BatchWaitTimer() as watched:
        told = api.pretrain(corpus=bench.options["corpus"], model=model, length=[length], train=train, eval_tokens=8192,
                            out=str(bench.folder / "fed"), quiet=True)  # fmt: skip
    what = f"{model}, length {length}, {train['workers']} workers"
    return [(what, f"{told['tokens_per_second'] / 1000:,.0f}k tokens/s", "", f"{watched.wait_fraction:.2%} waiting", "<= 2 %")]
