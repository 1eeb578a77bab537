"""Two hands for one step: works that do not touch one another are done at once, where there are two cores for them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Hands(NamedTuple):
    other: Executor | None

    def __call__(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """What each of them gives, in their order; the first is done here, the rest by the other hand."""
        if self.other is None:
            return [work() for work in works]
        begun = [self.other.submit(work) for work in works[1:]]
        return [*(work() for work in works[:1]), *(one.result() for one in begun)]


@contextmanager
def hands(wanted: int) -> Iterator[Hands]:
    """Two, if so many are wanted and torch may have two threads; each then computes in one, so that no number depends on how
    many there are. One is torch as it is.

    torch's own threads share a single operation, and those of a step are over before threads have found together.
    """
    if wanted == 1:
        yield Hands(None)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if threads == 1:
            yield Hands(None)
        else:
            with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as other:
                yield Hands(other)
    finally:
        torch.set_num_threads(threads)
