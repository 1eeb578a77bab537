"""Data loading on a GPU: the fraction of a run's time that the trainer waits for the workers' next batch.

python -m benchmarks gpu_feeding corpus=FOLDER [model=bert-base] [max_length=128] [batch_tokens=65536] [workers=12] [steps=150]

The trainer requests a batch while the GPU still computes the previous one, so the fraction is an
upper bound of the GPU's idle time.
"""

import time
from typing import Any

from bertsmith import api
from bertsmith.corpus.collate import NumpyBatch
from bertsmith.corpus.loader import Prefetcher

from .inputs import BenchmarkInputs

WARMUP_FRACTION = 0.2  # of the steps, while kernels compile and workers start; not counted


class BatchWaitTimer:
    """Context manager that times every call of `Prefetcher`."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, float]] = []  # (start, seconds)
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
        counted = self.waits[int(len(self.waits) * WARMUP_FRACTION) :]
        return sum(seconds for _, seconds in counted[:-1]) / (counted[-1][0] - counted[0][0])


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    train = {
        "steps": bench.int_option("steps", 150),
        "batch_tokens": bench.int_option("batch_tokens", 65_536),
        "precision": "bf16",
    }
    train |= {"workers": bench.int_option("workers", 12), "save_every": 10**9}
    model, length = bench.options.get("model", "bert-base"), bench.int_option("max_length", 128)
    with BatchWaitTimer() as timer:
        result = api.pretrain(corpus=bench.options["corpus"], model=model, max_length=[length], train=train, eval_tokens=8192,
                            out=str(bench.folder / "fed"), quiet=True)  # fmt: skip
    label = f"{model}, max_length {length}, {train['workers']} workers"
    return [(label, f"{result['tokens_per_second'] / 1000:,.0f}k tokens/s", "", f"{timer.wait_fraction:.2%} waiting", "<= 2 %")]
