"""Spawned worker processes that do not re-run the caller's script and exit when the parent does.

`WorkerPool` runs small functions in a process pool (data preparation). `run_jobs` runs long jobs (training runs) in worker
processes that share the cores, and reports each failure as a one-line message.
"""

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
_main_module_lock = threading.RLock()
THREADS_VARIABLE = "OMP_NUM_THREADS"
SHUTDOWN_TIMEOUT = 30.0  # seconds that a job has to save a checkpoint after SIGTERM
INTERRUPTED = "interrupted"


class WorkerPool:
    """A process pool whose workers call `initializer(*initargs)` first. Scripts need no `if __name__ == "__main__":` guard."""

    def __init__(self, num_workers: int, initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
        self.executor = ProcessPoolExecutor(
            num_workers, multiprocessing.get_context("spawn"), _init_worker, (initializer, initargs)
        )

    def submit(self, fn: Callable[..., T], *args: Any) -> "Future[T]":
        with _hide_main_module(), _block_signals():  # the executor starts processes on submit
            return self.executor.submit(fn, *args)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _hide_main_module() -> Iterator[None]:
    """Replace `__main__` while a process is spawned: the child would run its file again, and an unguarded script with it.

    multiprocessing has no setting for that. It looks `__main__` up in the thread that starts the process; the lock keeps
    threads that start processes at the same time from restoring each other's replacement.
    """
    with _main_module_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM in a process started inside until it ignores them itself, seconds later."""
    resource_tracker.ensure_running()  # started later, it would unblock the signals
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _init_worker(initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
    """Ignore SIGINT and SIGTERM, which a terminal sends to every process: the parent handles them, and workers exit with it."""
    for signum in PARENT_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    initializer(*initargs)


def _exit_with_parent() -> None:
    """Thread target: wait for the parent process to end, then end this one."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@dataclass(frozen=True)
class Job:
    """A call `fn(*args)`, both picklable."""

    name: str
    fn: Callable[..., None]
    args: tuple[Any, ...]


OnJobEnd = Callable[[Job, str | None], Sequence[Job]]  # (job, error message or None) -> jobs that may start now


def run_jobs(jobs: Sequence[Job], num_workers: int, on_end: OnJobEnd) -> None:
    """Run jobs, and those that `on_end` adds when one ends, `num_workers` at a time; with one worker, in this process."""
    with sigterm_as_interrupt():
        if num_workers == 1:
            _run_serial(deque(jobs), on_end)
        else:
            _run_parallel(deque(jobs), num_workers, on_end)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, which leaves time to save and clean up.

    A second SIGTERM is ignored, since `timeout` sends two. No effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old_handler = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler or signal.SIG_DFL)


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
                error_message = worker.receive()
                if error_message == INTERRUPTED:
                    raise Interrupted("run the same command again to resume")
                if error_message is None:
                    idle.append(worker)
                queue.extend(on_end(worker.job, error_message))
    finally:
        _stop_workers(idle, busy)


def _run_serial(queue: deque[Job], on_end: OnJobEnd) -> None:
    while queue:
        job = queue.popleft()
        error_message = None
        try:
            job.fn(*job.args)
        except (Interrupted, KeyboardInterrupt):
            raise
        except BaseException as error:
            error_message = format_error(error)
        queue.extend(on_end(job, error_message))


def format_error(error: BaseException) -> str:
    """An exception in one line: a UserError's message, or type, message and source line of anything else."""
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    location = f" ({os.path.basename(frames[0].filename)}:{frames[0].lineno})" if frames else ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}{location}"


class _Worker:
    """A process that runs jobs one after another, since starting one takes seconds; it is discarded after a failed job."""

    job: Job

    def __init__(self, num_workers: int) -> None:
        context = get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        threads = max(1, int(os.environ.get(THREADS_VARIABLE) or os.cpu_count() or 1) // num_workers)
        self.process = context.Process(target=_worker_main, args=(child_pipe, threads))
        with _hide_main_module():
            self.process.start()
        child_pipe.close()

    def start(self, job: Job) -> None:
        self.job = job
        with suppress(BrokenPipeError):  # it died while idle; `receive` reports that
            self.pipe.send(job)

    def receive(self) -> str | None:
        """Error message of the job, None on success; for a process that died, its exit reason."""
        try:
            error_message = self.pipe.recv() if self.pipe.poll() else self._exit_reason()
        except (EOFError, OSError):
            error_message = self._exit_reason()
        if error_message is not None:
            self.close()
            self.process.join()
        return None if error_message is None else str(error_message)

    def close(self) -> None:
        """Close the pipe, which ends an idle process."""
        self.pipe.close()

    def _exit_reason(self) -> str:
        self.process.join()
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its process exited with code {code}"
        name = signal.Signals(-code).name
        return f"its process was killed ({name}{', often for lack of memory: try fewer jobs' if name == 'SIGKILL' else ''})"


def _wait_ready(busy: Sequence[_Worker]) -> list[_Worker]:
    """Wait for the first worker that has sent its result or died; return all that have."""
    ready = set(wait([handle for worker in busy for handle in (worker.pipe, worker.process.sentinel)]))
    return [worker for worker in busy if worker.pipe in ready or worker.process.sentinel in ready]


def _worker_main(pipe: Connection, threads: int) -> None:
    os.environ[THREADS_VARIABLE] = str(threads)  # read by torch and numpy, which the first job imports
    os.setpgrp()  # signals of the terminal or of `timeout` go to the parent only, which forwards SIGTERM once
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _raise_interrupt)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):  # no more jobs, or interrupted while idle
        error_message = None
        while error_message is None:
            job = pipe.recv()
            error_message = _run_job(job)
            del job
            _free_memory()
            pipe.send(error_message)


def _run_job(job: Job) -> str | None:
    try:
        job.fn(*job.args)
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
    except BaseException as error:
        return format_error(error)
    return None


def _free_memory() -> None:
    """Release memory left by a job, above all on the GPU, for other processes."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # a device that failed
            torch.cuda.empty_cache()


def _stop_workers(idle: Sequence[_Worker], busy: Sequence[_Worker]) -> None:
    """SIGTERM, SHUTDOWN_TIMEOUT seconds to save, then SIGKILL; a killed run resumes from its last checkpoint."""
    for worker in idle:
        worker.close()
    for worker in busy:
        worker.process.terminate()
        worker.close()  # a worker whose job ends anyway must not wait for another
    deadline = time.monotonic() + SHUTDOWN_TIMEOUT
    for worker in (*idle, *busy):
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
