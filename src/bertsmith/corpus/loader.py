"""Batch k as a pure function of (corpus, seed, k): which samples it holds, and their tokens, hidden and packed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import BadInput
from ..processes import Workers
from ..rng import Stream, shuffled
from .collate import Arrays, Ints, Maker
from .sampling import PairConfig, Plan, Streams, ViewConfig


@dataclass(frozen=True)
class Batches:
    """Which samples make batch k. It needs no state: resuming is "start at k", and only two plans are ever made for it."""

    maker: Maker
    view: ViewConfig | PairConfig
    documents: Ints
    length: int
    tokens: int  # at most, in one batch
    repeats: int | None = None  # with a number, epochs repeat their samples and masks after so many (static masks)
    plans: dict[int, tuple[Plan, list[Ints]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.length > self.tokens:
            raise BadInput(f"a sample of {self.length} tokens does not fit a batch of {self.tokens}; raise train.batch_tokens "
                           "or lower length")  # fmt: skip

    def __call__(self, k: int) -> Arrays:
        return self.maker(*self.rows(k))

    def __iter__(self) -> Iterator[Arrays]:
        """The first epoch."""
        return (self(k) for k in range(self.an_epoch))

    def rows(self, k: int) -> tuple[Plan, int]:
        """What to make batch k from: its samples, and the epoch their masks are drawn for."""
        epoch, place = divmod(k, self.an_epoch)
        plan, cuts = self._planned(epoch)
        return plan.chosen(cuts[place % len(cuts)]), self._drawn(epoch)

    @cached_property
    def an_epoch(self) -> int:
        """Batches in an epoch: as many as the first needs, so that k alone tells the epoch."""
        return len(self._planned(0)[1])

    def _drawn(self, epoch: int) -> int:
        return epoch % self.repeats if self.repeats else epoch

    def _planned(self, epoch: int) -> tuple[Plan, list[Ints]]:
        if epoch not in self.plans:
            seed, corpus = self.maker.seed, self.maker.corpus
            plan = self.view.plan(corpus, self.documents, self.length, seed, self._drawn(epoch))
            for old in [e for e in self.plans if e != epoch - 1]:
                del self.plans[old]
            self.plans[epoch] = plan, self._cut(plan, epoch)
        return self.plans[epoch]

    def _cut(self, plan: Plan, epoch: int) -> list[Ints]:
        if isinstance(self.view, Streams):
            return self.view.rows(len(plan), self.tokens // self.length)
        order = shuffled(len(plan), self.maker.seed, Stream.SAMPLE_ORDER, epoch)
        return np.split(order, cuts(plan.lengths[order], self.tokens))


def cuts(lengths: Ints, budget: int) -> list[int]:
    """Where one batch is full and the next begins."""
    ends, cuts = lengths.cumsum(), [0]
    while cuts[-1] < len(ends):
        done = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(int(np.searchsorted(ends, done + budget, side="right")))
    return cuts[1:-1]


Rows = Callable[[int], tuple[Plan, int]]


class Ahead:
    """`ahead(k, rows)` is batch k; while it is used, workers make the next few. Planning stays in this process.

    Of several ranks each reads every `stride`-th batch, and makes no other.
    """

    def __init__(self, maker: Maker, workers: int, stride: int = 1, depth: int = 4) -> None:
        self.maker, self.stride, self.depth = maker, stride, max(depth, 2 * workers)
        self.pool = Workers(workers, _begin, (maker,)) if workers else None
        self.waiting: dict[int, Future[Arrays]] = {}
        self.last: Any = None

    def __call__(self, k: int, rows: Rows) -> Arrays:
        if self.pool is None:
            return self.maker(*rows(k))
        if rows != self.last:  # another phase: what was made ahead is of no use
            self.waiting, self.last = {}, rows
        for ahead in range(k, k + self.stride * (self.depth + 1), self.stride):
            if ahead not in self.waiting:
                self.waiting[ahead] = self.pool.submit(_work, *rows(ahead))
        self.waiting = {number: future for number, future in self.waiting.items() if number >= k}
        return self.waiting.pop(k).result()

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.pool:
            self.pool.__exit__(kind, error, trace)


_MAKER: list[Maker] = []  # one in each worker process


def _begin(maker: Maker) -> None:
    _MAKER.append(maker)


def _work(plan: Plan, epoch: int) -> Arrays:
    return _MAKER[0](plan, epoch)
