"""Worker processes: spawned clean, fed in order, never importing the caller's script, ending when it ends."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType, ModuleType, TracebackType
from typing import Any, TypeVar

from .errors import BadInput, Stopped

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


THREADS = "OMP_NUM_THREADS"
PATIENCE = 30.0  # seconds that work has to save itself when it is to stop
STOPPED = "stopped"


@dataclass(frozen=True)
class Job:
    """`work(*given)` is called; both must be such that another process can be sent them."""

    name: str
    work: Callable[..., None]
    given: tuple[Any, ...]


Ended = Callable[[Job, str | None], Sequence[Job]]  # told what failed, or None; gives what may be begun now


def carried_out(jobs: Sequence[Job], count: int, ended: Ended) -> None:
    """All jobs, and those that `ended` adds when one ends, `count` at a time; a single one at a time is done right here."""
    with interrupted_by_signals():
        if count == 1:
            _here(deque(jobs), ended)
        else:
            _side_by_side(deque(jobs), count, ended)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """SIGTERM, which would end the process at once, is inside like Ctrl-C: there is time to save, and to clean up.

    `timeout` sends it twice: the second changes nothing. Outside the main thread, nothing is changed at all.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _side_by_side(waiting: deque[Job], count: int, ended: Ended) -> None:
    idle, busy = list[_Worker](), list[_Worker]()
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                busy.append(idle.pop() if idle else _Worker(count))
                busy[-1].begin(waiting.popleft())
            for worker in _heard_of(busy):
                busy.remove(worker)
                fault = worker.heard()
                if fault == STOPPED:
                    raise Stopped("run the same command again to go on")
                if fault is None:
                    idle.append(worker)
                waiting.extend(ended(worker.job, fault))
    finally:
        _stopped(idle, busy)


def _here(waiting: deque[Job], ended: Ended) -> None:
    while waiting:
        job = waiting.popleft()
        fault = None
        try:
            job.work(*job.given)
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            fault = told_of(error)
        waiting.extend(ended(job, fault))


def told_of(error: BaseException) -> str:
    """A fault in one line: a person's mistake as it stands, anything else with where it happened."""
    if isinstance(error, BadInput):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else 'no words'}{where}"


class _Worker:
    """A process that does one job after another, since starting costs seconds, until one fails: its remains go with it."""

    job: Job

    def __init__(self, count: int) -> None:
        spawn = get_context("spawn")
        self.pipe, end = spawn.Pipe()
        self.process = spawn.Process(target=_child, args=(end,))
        with another_main(), _fewer_threads(count):
            self.process.start()
        end.close()

    def begin(self, job: Job) -> None:
        self.job = job
        with suppress(BrokenPipeError):  # it died while idle, as `heard` will tell
            self.pipe.send(job)

    def heard(self) -> str | None:
        """What it says of its job; one that died without a word is told of by how it died."""
        try:
            fault = self.pipe.recv() if self.pipe.poll() else self._death()
        except (EOFError, OSError):
            fault = self._death()
        if fault is not None:
            self.leave()
            self.process.join()
        return None if fault is None else str(fault)

    def leave(self) -> None:
        """Nothing more will come: an idle process ends."""
        self.pipe.close()

    def _death(self) -> str:
        self.process.join()
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its process died (exit code {code})"
        name = signal.Signals(-code).name
        return f"its process died ({name}{', often for want of memory: try fewer jobs' if name == 'SIGKILL' else ''})"


def _heard_of(busy: Sequence[_Worker]) -> list[_Worker]:
    """Those that have said something, or died; waits for the first."""
    ready = set(wait([place for one in busy for place in (one.pipe, one.process.sentinel)]))
    return [one for one in busy if one.pipe in ready or one.process.sentinel in ready]


def _child(pipe: Connection) -> None:
    os.setpgrp()  # signals of the terminal, or of `timeout`, are the parent's, which asks each process once
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _interrupt)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):  # no more work, or none wanted
        fault = None
        while fault is None:
            job = pipe.recv()
            fault = _tried(job)
            del job
            _released()
            pipe.send(fault)


def _tried(job: Job) -> str | None:
    try:
        job.work(*job.given)
    except (Stopped, KeyboardInterrupt):
        return STOPPED
    except BaseException as error:
        return told_of(error)
    return None


def _released() -> None:
    """What the work has left in memory, above all the device's, others may need."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # of a device that failed
            torch.cuda.empty_cache()


@contextmanager
def _fewer_threads(count: int) -> Iterator[None]:
    """The cores are shared among all that run: a process that is started inside reads so many from its environment."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = str(max(1, int(before or os.cpu_count() or 1) // count))
    try:
        yield
    finally:
        os.environ.pop(THREADS)
        if before is not None:
            os.environ[THREADS] = before


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stopped(idle: Sequence[_Worker], busy: Sequence[_Worker]) -> None:
    """They are asked, and have a while to save what they have; a run that is killed then goes on from its last save."""
    for one in idle:
        one.leave()
    for one in busy:
        one.process.terminate()
        one.leave()  # work that came to its end all the same must not wait for more
    until = time.monotonic() + PATIENCE
    for one in (*idle, *busy):
        one.process.join(max(0.0, until - time.monotonic()))
        if one.process.is_alive():
            one.process.kill()
            one.process.join()
