"""Batch loading: batch k is a pure function of (corpus, seed, k); workers prefetch the next batches."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..errors import UserError
from ..processes import WorkerPool
from ..rng import Stream, permutation
from .batches import batch_boundaries
from .collate import Collator, Ints, NumpyBatch
from .sampling import PairSamplerConfig, SampleIndex, SamplerConfig, Streams


@dataclass(frozen=True)
class BatchLoader:
    """Map-style loader of batches by number k. Stateless: to resume, start at k. Caches the sample index of two epochs."""

    collator: Collator
    sampler: SamplerConfig | PairSamplerConfig
    document_ids: Ints
    max_length: int
    batch_tokens: int  # maximum per batch
    dupe_factor: int | None = None  # epochs repeat their samples and masks with this period (static masking); None: never
    index_cache: dict[int, tuple[SampleIndex, list[Ints]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.max_length > self.batch_tokens:
            raise UserError(
                f"max_length={self.max_length} does not fit into train.batch_tokens={self.batch_tokens}; "
                "raise train.batch_tokens or lower max_length"
            )

    def __call__(self, k: int) -> NumpyBatch:
        return self.collator(*self.select_samples(k))

    def __iter__(self) -> Iterator[NumpyBatch]:
        """The batches of the first epoch."""
        return (self(k) for k in range(self.batches_per_epoch))

    def with_batch_tokens(self, batch_tokens: int) -> Self:
        """The loader with another number of tokens per batch: the same samples in the same order."""
        return self if batch_tokens == self.batch_tokens else replace(self, batch_tokens=batch_tokens, index_cache={})

    def select_samples(self, k: int) -> tuple[SampleIndex, int]:
        """The samples of batch k, and the epoch that seeds their masks."""
        epoch, batch = divmod(k, self.batches_per_epoch)
        index, batches = self._epoch_index(epoch)
        return index.select(batches[batch % len(batches)]), self._sampling_epoch(epoch)

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of batches of the first epoch, used for all epochs, so that k determines the epoch."""
        return len(self._epoch_index(0)[1])

    def _sampling_epoch(self, epoch: int) -> int:
        return epoch % self.dupe_factor if self.dupe_factor else epoch

    def _epoch_index(self, epoch: int) -> tuple[SampleIndex, list[Ints]]:
        if epoch not in self.index_cache:
            seed, corpus = self.collator.seed, self.collator.corpus
            index = self.sampler.build_index(corpus, self.document_ids, self.max_length, seed, self._sampling_epoch(epoch))
            for old_epoch in [cached_epoch for cached_epoch in self.index_cache if cached_epoch != epoch - 1]:
                del self.index_cache[old_epoch]
            self.index_cache[epoch] = index, self._split_batches(index, epoch)
        return self.index_cache[epoch]

    def _split_batches(self, index: SampleIndex, epoch: int) -> list[Ints]:
        if isinstance(self.sampler, Streams):
            return self.sampler.batch_samples(len(index), self.batch_tokens // self.max_length)
        order = permutation(len(index), self.collator.seed, Stream.SAMPLE_ORDER, epoch)
        return np.split(order, batch_boundaries(index.lengths[order], self.batch_tokens))


SampleSelector = Callable[[int], tuple[SampleIndex, int]]


class Prefetcher:
    """`prefetcher(k, select_samples)` returns batch k while workers collate the next `depth` batches.

    Samples are selected in this process. In distributed training each rank loads every `stride`-th batch only.
    """

    def __init__(self, collator: Collator, workers: int, stride: int = 1, depth: int = 4) -> None:
        self.collator, self.stride, self.depth = collator, stride, max(depth, 2 * workers)
        self.pool = WorkerPool(workers, _init_worker, (collator,)) if workers else None
        self.pending: dict[int, Future[NumpyBatch]] = {}
        self.last_selector: Any = None

    def __call__(self, k: int, select_samples: SampleSelector) -> NumpyBatch:
        if self.pool is None:
            return self.collator(*select_samples(k))
        if select_samples != self.last_selector:  # a new training phase: discard prefetched batches
            self.pending, self.last_selector = {}, select_samples
        for batch in range(k, k + self.stride * (self.depth + 1), self.stride):
            if batch not in self.pending:
                self.pending[batch] = self.pool.submit(_collate_in_worker, *select_samples(batch))
        self.pending = {index: future for index, future in self.pending.items() if index >= k}
        return self.pending.pop(k).result()

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.pool:
            self.pool.__exit__(exc_type, error, trace)


_WORKER_COLLATOR: list[Collator] = []  # one per worker process


def _init_worker(collator: Collator) -> None:
    _WORKER_COLLATOR.append(collator)


def _collate_in_worker(samples: SampleIndex, epoch: int) -> NumpyBatch:
    return _WORKER_COLLATOR[0](samples, epoch)
