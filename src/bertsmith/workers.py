"""Worker processes: spawned clean, fed in order, never importing the caller's script, ending when it ends."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
LEFT_TO_PARENT = (signal.SIGINT, signal.SIGTERM)


class Workers:
    """A pool whose processes begin with `begin(*given)`. Scripts that use it need no `if __name__ == "__main__":`."""

    def __init__(self, count: int, begin: Callable[..., None], given: tuple[Any, ...]) -> None:
        self.pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begun, (begin, given))

    def submit(self, work: Callable[..., T], *given: Any) -> "Future[T]":
        with another_main(), _held_back():  # processes are started here, when there is work for them
            return self.pool.submit(work, *given)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def another_main() -> Iterator[None]:
    """A spawned process runs the file of `__main__` again, and a script without a guard would start all over in it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _held_back() -> Iterator[None]:
    """A process started inside is not reached by signals until it has chosen to ignore them, which takes it seconds."""
    resource_tracker.ensure_running()  # when it is started later, it lets the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begun(begin: Callable[..., None], given: tuple[Any, ...]) -> None:
    """Ctrl-C goes to every process of a terminal: the parent decides what it means, and its end is the workers' end."""
    for number in LEFT_TO_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_PARENT)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    begin(*given)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
