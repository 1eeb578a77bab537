"""How long a GPU's training waits for its batches: the share of a run's time spent asking the workers for the next one.

python -m benchmarks gpu_feeding corpus=FOLDER [model=bert-base] [length=128] [tokens=65536] [workers=12] [steps=150]

The trainer asks while the GPU still works on the batch before, so the share is an upper bound on what the GPU waits.
"""

import time
from typing import Any

from bertsmith import api
from bertsmith.corpus.collate import Arrays
from bertsmith.corpus.loader import Ahead

from .material import Material

SETTLED = 0.2  # of the steps, in which kernels are compiled and workers begin


class Watched:
    """Takes the time of every call for a batch, as long as it is entered."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []  # when, and for how long
        self.plain = Ahead.__call__

    def __enter__(self) -> "Watched":
        def call(ahead: Ahead, k: int, rows: Any) -> Arrays:
            start = time.perf_counter()
            arrays = self.plain(ahead, k, rows)
            self.asked.append((start, time.perf_counter() - start))
            return arrays

        Ahead.__call__ = call  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Ahead.__call__ = self.plain  # type: ignore[assignment, method-assign]

    @property
    def share(self) -> float:
        settled = self.asked[int(len(self.asked) * SETTLED) :]
        return sum(took for _, took in settled[:-1]) / (settled[-1][0] - settled[0][0])


def run(stuff: Material) -> list[tuple[str, str, str, str, str]]:
    train = {"steps": stuff.number("steps", 150), "batch_tokens": stuff.number("tokens", 65_536), "precision": "bf16"}
    train |= {"workers": stuff.number("workers", 12), "save_every": 10**9}
    model, length = stuff.given.get("model", "bert-base"), stuff.number("length", 128)
    with Watched() as watched:
        told = api.pretrain(corpus=stuff.given["corpus"], model=model, length=[length], train=train, eval_tokens=8192,
                            out=str(stuff.folder / "fed"), quiet=True)  # fmt: skip
    what = f"{model}, length {length}, {train['workers']} workers"
    return [(what, f"{told['tokens_per_second'] / 1000:,.0f}k tokens/s", "", f"{watched.share:.2%} waiting", "<= 2 %")]
