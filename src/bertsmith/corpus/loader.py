"""Batch k as a pure function of (corpus, seed, k): which samples it holds, and their tokens, hidden and packed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import UserError
from ..processes import WorkerPool
from ..rng import Stream, permutation
from .collate import Collator, Ints, NumpyBatch
from .sampling import PairSamplerConfig, SampleIndex, SamplerConfig, Streams


@dataclass(frozen=True)
class BatchLoader:
    """Which samples make batch k. It needs no state: resuming is "start at k", and only two plans are ever made for it."""

    collator: Collator
    sampler: SamplerConfig | PairSamplerConfig
    document_ids: Ints
    max_length: int
    batch_tokens: int  # at most, in one batch
    dupe_factor: int | None = None  # with a number, epochs repeat their samples and masks after so many (static masks)
    index_cache: dict[int, tuple[SampleIndex, list[Ints]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.max_length > self.batch_tokens:
            raise UserError(f"a sample of {self.max_length} tokens does not fit a batch of {self.batch_tokens}; raise train.batch_tokens "
                           "or lower length")  # fmt: skip

    def __call__(self, k: int) -> NumpyBatch:
        return self.collator(*self.select_samples(k))

    def __iter__(self) -> Iterator[NumpyBatch]:
        """The first epoch."""
        return (self(k) for k in range(self.batches_per_epoch))

    def select_samples(self, k: int) -> tuple[SampleIndex, int]:
        """What to make batch k from: its samples, and the epoch their masks are drawn for."""
        epoch, place = divmod(k, self.batches_per_epoch)
        plan, cuts = self._epoch_index(epoch)
        return plan.select(cuts[place % len(cuts)]), self._sampling_epoch(epoch)

    @cached_property
    def batches_per_epoch(self) -> int:
        """Batches in an epoch: as many as the first needs, so that k alone tells the epoch."""
        return len(self._epoch_index(0)[1])

    def _sampling_epoch(self, epoch: int) -> int:
        return epoch % self.dupe_factor if self.dupe_factor else epoch

    def _epoch_index(self, epoch: int) -> tuple[SampleIndex, list[Ints]]:
        if epoch not in self.index_cache:
            seed, corpus = self.collator.seed, self.collator.corpus
            plan = self.sampler.build_index(corpus, self.document_ids, self.max_length, seed, self._sampling_epoch(epoch))
            for old in [e for e in self.index_cache if e != epoch - 1]:
                del self.index_cache[old]
            self.index_cache[epoch] = plan, self._split_batches(plan, epoch)
        return self.index_cache[epoch]

    def _split_batches(self, index: SampleIndex, epoch: int) -> list[Ints]:
        if isinstance(self.sampler, Streams):
            return self.sampler.batch_samples(len(index), self.batch_tokens // self.max_length)
        order = permutation(len(index), self.collator.seed, Stream.SAMPLE_ORDER, epoch)
        return np.split(order, batch_boundaries(index.lengths[order], self.batch_tokens))


def batch_boundaries(lengths: Ints, batch_tokens: int) -> list[int]:
    """Where one batch is full and the next begins."""
    ends, cuts = lengths.cumsum(), [0]
    while cuts[-1] < len(ends):
        done = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(int(np.searchsorted(ends, done + batch_tokens, side="right")))
    return cuts[1:-1]


SampleSelector = Callable[[int], tuple[SampleIndex, int]]


class Prefetcher:
    """`ahead(k, rows)` is batch k; while it is used, workers make the next few. Planning stays in this process.

    Of several ranks each reads every `stride`-th batch, and makes no other.
    """

    def __init__(self, collator: Collator, workers: int, stride: int = 1, depth: int = 4) -> None:
        self.collator, self.stride, self.depth = collator, stride, max(depth, 2 * workers)
        self.pool = WorkerPool(workers, _init_worker, (collator,)) if workers else None
        self.pending: dict[int, Future[NumpyBatch]] = {}
        self.last_selector: Any = None

    def __call__(self, k: int, select_samples: SampleSelector) -> NumpyBatch:
        if self.pool is None:
            return self.collator(*select_samples(k))
        if select_samples != self.last_selector:  # another phase: what was made ahead is of no use
            self.pending, self.last_selector = {}, select_samples
        for ahead in range(k, k + self.stride * (self.depth + 1), self.stride):
            if ahead not in self.pending:
                self.pending[ahead] = self.pool.submit(_collate_in_worker, *select_samples(ahead))
        self.pending = {number: future for number, future in self.pending.items() if number >= k}
        return self.pending.pop(k).result()

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.pool:
            self.pool.__exit__(exc_type, error, trace)


_WORKER_COLLATOR: list[Collator] = []  # one in each worker process


def _init_worker(collator: Collator) -> None:
    _WORKER_COLLATOR.append(collator)


def _collate_in_worker(samples: SampleIndex, epoch: int) -> NumpyBatch:
    return _WORKER_COLLATOR[0](samples, epoch)
