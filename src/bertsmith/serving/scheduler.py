"""`Scheduler`: one thread that computes the items of all requests in batches of a bounded number of tokens.

Items that ask the same of the same model share a batch, whichever request they come from, and those of similar length do so
first: less is padded. Each batch has an item of the request that waits longest, and requests take turns, so that a long one
does not hold up a short one. A thread of its own is all that a CPU or GPU can use.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

MAX_BATCH_ITEMS = 1024
WINDOW = 4  # batches of waiting items among which those of similar length are chosen

Compute = Callable[[list[Any]], Sequence[Any]]  # one result per item, in order


class Operation(NamedTuple):
    """What is asked of a model. Items of operations with equal keys are computed together."""

    key: Hashable
    compute: Compute


class QueueFull(Exception):
    """More items are waiting than the scheduler accepts."""


class Job:
    """The items of one request: `future` gets their results in order, or the first error."""

    def __init__(self, operation: Operation, items: Sequence[Any], sizes: Sequence[int]) -> None:
        """`sizes`: tokens of each item, at least roughly."""
        self.operation, self.items, self.sizes = operation, items, sizes
        self.results: list[Any] = [None] * len(items)
        self.waiting = list(range(len(items)))  # indices of the items that have not been started
        self.num_finished = 0
        self.future: Future[list[Any]] = Future()

    def cancel(self) -> None:
        """Items that have not been started are not computed."""
        self.future.cancel()


class Scheduler:
    """Runs until `close`. `on_batch(items, tokens)` is called after every batch, for metrics."""

    def __init__(
        self, batch_tokens: int, max_pending: int, on_batch: Callable[[int, int], object] = lambda items, tokens: None
    ) -> None:
        self.batch_tokens, self.max_pending, self.on_batch = batch_tokens, max_pending, on_batch
        self._jobs: deque[Job] = deque()
        self._num_pending = 0  # items that are not finished
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="bertsmith-scheduler", daemon=True)
        self._thread.start()

    @property
    def num_pending(self) -> int:
        """Items waiting or being computed."""
        return self._num_pending

    def submit(self, operation: Operation, items: Sequence[Any], sizes: Sequence[int], is_continued: bool = False) -> Job:
        """Queue the items; raises QueueFull if there is no room for them. A single request always has room in an empty queue,
        and one that is continued, having computed something already, in any."""
        job = Job(operation, items, sizes)
        if not items:
            job.future.set_result([])
            return job
        with self._changed:
            is_full = self._num_pending + len(items) > self.max_pending
            if self._is_closed or (self._num_pending and is_full and not is_continued):
                raise QueueFull
            self._jobs.append(job)
            self._num_pending += len(items)
            job.future.add_done_callback(lambda _: self._forget(job))
            self._changed.notify()
        return job

    def close(self) -> None:
        """End the thread after the batch it computes; waiting jobs are cancelled."""
        with self._changed:
            self._is_closed = True
            jobs = list(self._jobs)
            self._changed.notify()
        for job in jobs:
            job.cancel()
        self._thread.join()

    def _forget(self, job: Job) -> None:
        with self._changed:
            self._num_pending -= len(job.items)
            if job in self._jobs:
                self._jobs.remove(job)

    def _run(self) -> None:
        while (batch := self._take_batch()) is not None:
            if batch:
                self._compute(batch)

    def _take_batch(self) -> list[tuple[Job, int]] | None:
        """(job, index of an item) of the next batch: of the first job in turn, and of others with the same operation."""
        with self._changed:
            while not self._jobs and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            first = self._jobs.popleft()
            batch = self._choose_similar(self._read_window(first))
            taken: dict[int, tuple[Job, set[int]]] = {}
            for job, index in batch:
                taken.setdefault(id(job), (job, set()))[1].add(index)
            for job, indices in taken.values():
                job.waiting = [index for index in job.waiting if index not in indices]
                if not job.waiting and job is not first:
                    self._jobs.remove(job)
            if first.waiting and not first.future.done():
                self._jobs.append(first)
            return batch

    def _read_window(self, first: Job) -> list[tuple[Job, int]]:
        """Waiting items of the operation of `first`, in turns: an item of each job, then the next of each."""
        jobs = (first, *(job for job in self._jobs if job.operation.key == first.operation.key))
        sharing = deque((job, iter(job.waiting)) for job in jobs if not job.future.done())
        window, num_tokens = list[tuple[Job, int]](), 0
        while sharing and len(window) < MAX_BATCH_ITEMS and num_tokens < WINDOW * self.batch_tokens:
            job, indices = sharing.popleft()
            if (index := next(indices, None)) is not None:
                window.append((job, index))
                num_tokens += job.sizes[index]
                sharing.append((job, indices))
        return window

    def _choose_similar(self, window: list[tuple[Job, int]]) -> list[tuple[Job, int]]:
        """The first item and those of the most similar lengths, as many as fit into a batch."""
        if not window:  # the first job was cancelled
            return []
        length = window[0][0].sizes[window[0][1]]
        batch, num_tokens = list[tuple[Job, int]](), 0
        for job, index in sorted(window, key=lambda pair: abs(pair[0].sizes[pair[1]] - length)):
            if batch and num_tokens + job.sizes[index] > self.batch_tokens:
                break
            batch.append((job, index))
            num_tokens += job.sizes[index]
        return batch

    def _compute(self, batch: list[tuple[Job, int]]) -> None:
        batch = [(job, index) for job, index in batch if not job.future.done()]
        jobs = list({id(job): job for job, _ in batch}.values())
        try:
            if not batch:
                return
            results = jobs[0].operation.compute([job.items[index] for job, index in batch])
        except Exception as error:
            if len(jobs) == 1:
                _fail(jobs[0], error)
            else:  # whose item it was is found by computing each job's alone
                for job in jobs:
                    self._compute([pair for pair in batch if pair[0] is job])
            return
        for (job, index), result in zip(batch, results, strict=True):
            job.results[index] = result
            job.num_finished += 1
        self.on_batch(len(batch), sum(job.sizes[index] for job, index in batch))
        for job in jobs:
            if job.num_finished == len(job.items) and job.future.set_running_or_notify_cancel():
                job.future.set_result(job.results)


def _fail(job: Job, error: Exception) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
