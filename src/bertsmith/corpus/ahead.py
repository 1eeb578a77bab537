"""Batches made ahead of need by worker processes: the same batches, in the same order, for any number of them."""

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from ..workers import Workers
from .batches import Arrays, Maker
from .views import Plan

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
