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

from .errors import Interrupted, UserError

T = TypeVar("T")
PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class WorkerPool:
    """A pool whose processes begin with `begin(*given)`. Scripts that use it need no `if __name__ == "__main__":`."""

    def __init__(self, num_workers: int, initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
        self.executor = ProcessPoolExecutor(
            num_workers, multiprocessing.get_context("spawn"), _init_worker, (initializer, initargs)
        )

    def submit(self, fn: Callable[..., T], *args: Any) -> "Future[T]":
        with hide_main_module(), _block_signals():  # processes are started here, when there is work for them
            return self.executor.submit(fn, *args)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


@contextmanager
def hide_main_module() -> Iterator[None]:
    """A spawned process runs the file of `__main__` again, and a script without a guard would start all over in it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _block_signals() -> Iterator[None]:
    """A process started inside is not reached by signals until it has chosen to ignore them, which takes it seconds."""
    resource_tracker.ensure_running()  # when it is started later, it lets the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _init_worker(initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
    """Ctrl-C goes to every process of a terminal: the parent decides what it means, and its end is the workers' end."""
    for number in PARENT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    threading.Thread(target=_exit_when_parent_ends, daemon=True).start()
    initializer(*initargs)


def _exit_when_parent_ends() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


THREADS_VARIABLE = "OMP_NUM_THREADS"
SHUTDOWN_TIMEOUT = 30.0  # seconds that work has to save itself when it is to stop
INTERRUPTED = "stopped"


@dataclass(frozen=True)
class Job:
    """`work(*given)` is called; both must be such that another process can be sent them."""

    name: str
    fn: Callable[..., None]
    args: tuple[Any, ...]


OnJobEnd = Callable[[Job, str | None], Sequence[Job]]  # told what failed, or None; gives what may be begun now


def run_jobs(jobs: Sequence[Job], num_workers: int, on_end: OnJobEnd) -> None:
    """All jobs, and those that `ended` adds when one ends, `count` at a time; a single one at a time is done right here."""
    with sigterm_as_interrupt():
        if num_workers == 1:
            _run_serial(deque(jobs), on_end)
        else:
            _run_parallel(deque(jobs), num_workers, on_end)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, which would end the process at once, is inside like Ctrl-C: there is time to save, and to clean up.

    `timeout` sends it twice: the second changes nothing. Outside the main thread, nothing is changed at all.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _raise_interrupt(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run_parallel(queue: deque[Job], num_workers: int, on_end: OnJobEnd) -> None:
    idle, busy = list[_Worker](), list[_Worker]()
    try:
        while queue or busy:
            while queue and len(busy) < num_workers:
                busy.append(idle.pop() if idle else _Worker(num_workers))
                busy[-1].start(queue.popleft())
            for worker in _wait_ready(busy):
                busy.remove(worker)
                fault = worker.receive()
                if fault == INTERRUPTED:
                    raise Interrupted("run the same command again to go on")
                if fault is None:
                    idle.append(worker)
                queue.extend(on_end(worker.job, fault))
    finally:
        _stop_workers(idle, busy)


def _run_serial(queue: deque[Job], on_end: OnJobEnd) -> None:
    while queue:
        job = queue.popleft()
        fault = None
        try:
            job.fn(*job.args)
        except (Interrupted, KeyboardInterrupt):
            raise
        except BaseException as error:
            fault = format_error(error)
        queue.extend(on_end(job, fault))


def format_error(error: BaseException) -> str:
    """A fault in one line: a person's mistake as it stands, anything else with where it happened."""
    if isinstance(error, UserError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else 'no words'}{where}"


class _Worker:
    """A process that does one job after another, since starting costs seconds, until one fails: its remains go with it."""

    job: Job

    def __init__(self, num_workers: int) -> None:
        spawn = get_context("spawn")
        self.pipe, end = spawn.Pipe()
        self.process = spawn.Process(target=_worker_main, args=(end,))
        with hide_main_module(), _limit_threads(num_workers):
            self.process.start()
        end.close()

    def start(self, job: Job) -> None:
        self.job = job
        with suppress(BrokenPipeError):  # it died while idle, as `heard` will tell
            self.pipe.send(job)

    def receive(self) -> str | None:
        """What it says of its job; one that died without a word is told of by how it died."""
        try:
            fault = self.pipe.recv() if self.pipe.poll() else self._exit_reason()
        except (EOFError, OSError):
            fault = self._exit_reason()
        if fault is not None:
            self.close()
            self.process.join()
        return None if fault is None else str(fault)

    def close(self) -> None:
        """Nothing more will come: an idle process ends."""
        self.pipe.close()

    def _exit_reason(self) -> str:
        self.process.join()
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its process died (exit code {code})"
        name = signal.Signals(-code).name
        return f"its process died ({name}{', often for want of memory: try fewer jobs' if name == 'SIGKILL' else ''})"


def _wait_ready(busy: Sequence[_Worker]) -> list[_Worker]:
    """Those that have said something, or died; waits for the first."""
    ready = set(wait([place for one in busy for place in (one.pipe, one.process.sentinel)]))
    return [one for one in busy if one.pipe in ready or one.process.sentinel in ready]


def _worker_main(pipe: Connection) -> None:
    os.setpgrp()  # signals of the terminal, or of `timeout`, are the parent's, which asks each process once
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _raise_interrupt)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):  # no more work, or none wanted
        fault = None
        while fault is None:
            job = pipe.recv()
            fault = _run_job(job)
            del job
            _free_memory()
            pipe.send(fault)


def _run_job(job: Job) -> str | None:
    try:
        job.fn(*job.args)
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
    except BaseException as error:
        return format_error(error)
    return None


def _free_memory() -> None:
    """What the work has left in memory, above all the device's, others may need."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # of a device that failed
            torch.cuda.empty_cache()


@contextmanager
def _limit_threads(num_workers: int) -> Iterator[None]:
    """The cores are shared among all that run: a process that is started inside reads so many from its environment."""
    before = os.environ.get(THREADS_VARIABLE)
    os.environ[THREADS_VARIABLE] = str(max(1, int(before or os.cpu_count() or 1) // num_workers))
    try:
        yield
    finally:
        os.environ.pop(THREADS_VARIABLE)
        if before is not None:
            os.environ[THREADS_VARIABLE] = before


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stop_workers(idle: Sequence[_Worker], busy: Sequence[_Worker]) -> None:
    """They are asked, and have a while to save what they have; a run that is killed then goes on from its last save."""
    for one in idle:
        one.close()
    for one in busy:
        one.process.terminate()
        one.close()  # work that came to its end all the same must not wait for more
    until = time.monotonic() + SHUTDOWN_TIMEOUT
    for one in (*idle, *busy):
        one.process.join(max(0.0, until - time.monotonic()))
        if one.process.is_alive():
            one.process.kill()
            one.process.join()
