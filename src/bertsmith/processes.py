"""Spawned worker processes that do not re-run the caller's script and exit when the parent does.

`WorkerPool` calls pure functions (data preparation), and repeats the calls of a worker that dies. `run_jobs` runs long jobs
(training runs) in worker processes that share the cores, and reports each failure as a one-line message.
"""

import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from .console import logger
from .errors import Interrupted, UserError
from .signals import RESUME_HINT, STOP_SIGNALS, raise_on_stop

T = TypeVar("T")
_main_module_lock = threading.RLock()
THREADS_VARIABLE = "OMP_NUM_THREADS"
SHUTDOWN_TIMEOUT = 30.0  # seconds that a job has to save a checkpoint after SIGTERM
INTERRUPTED = "interrupted"


class WorkerPool:
    """Processes that call pure functions, each after `initializer(*initargs)`.

    A worker that dies (the kernel kills one with SIGKILL when memory runs out) is reported and replaced, and its call is
    repeated; a call whose workers die MAX_DEATHS times is a UserError. Each worker has a pipe of its own and a thread here that
    waits on it, so that no death can block another. Scripts need no `if __name__ == "__main__":` guard.
    """

    MAX_DEATHS = 3

    def __init__(self, num_workers: int, initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
        self.num_workers, self.target_args = num_workers, (initializer, initargs)
        self.workers, self.idle = list[_PoolWorker](), deque[_PoolWorker]()
        self.threads = ThreadPoolExecutor(num_workers)
        self.is_closed = False
        Finalize(self, _kill_workers, (self.workers,), exitpriority=10)  # at exit multiprocessing would wait for them for ever

    def submit(self, fn: Callable[..., T], *args: Any) -> "Future[T]":
        if len(self.workers) < self.num_workers:
            self.idle.append(self._start_worker())
        return self.threads.submit(self._call, (fn, args))

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        """End the workers at once: what they still compute is not wanted."""
        self.is_closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        _kill_workers(self.workers)
        self.threads.shutdown()
        for worker in list(self.workers):
            worker.end()

    def _call(self, call: tuple[Callable[..., T], tuple[Any, ...]]) -> T:
        """In a thread: the result of a call in an idle worker; there are as many threads as workers."""
        worker = self.idle.popleft() if self.idle else self._start_worker()
        deaths = 0
        while True:
            try:
                is_done, value = worker.call(call)
            except (EOFError, OSError):  # it died
                self.workers.remove(worker)
                worker.end()
                deaths += 1
                self._report_death(worker, deaths)
                worker = self._start_worker()
                continue
            except BaseException:  # what was sent or received cannot be pickled
                self.idle.append(worker)
                raise
            self.idle.append(worker)
            if not is_done:
                raise value
            return value

    def _start_worker(self) -> "_PoolWorker":
        worker = _PoolWorker(self.target_args)
        self.workers.append(worker)
        return worker

    def _report_death(self, worker: "_PoolWorker", deaths: int) -> None:
        """A warning, or an error if the work is given up."""
        if self.is_closed:
            raise CancelledError
        problem = f"worker process {worker.process.pid} {describe_exit(worker.process.exitcode)}"
        if deaths == self.MAX_DEATHS:
            raise UserError(
                f"{problem}; {deaths} workers have died at the same work: use fewer workers (workers=1), or make more memory "
                f"available, and {RESUME_HINT}"
            )
        logger.warning("%s; another one repeats its work", problem)


def _kill_workers(workers: Sequence["_PoolWorker"]) -> None:
    for worker in list(workers):
        worker.process.kill()


class _PoolWorker:
    """A process of a WorkerPool."""

    def __init__(self, target_args: tuple[Any, ...]) -> None:
        context = get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self.process = context.Process(target=_serve_calls, args=(child_pipe, *target_args), daemon=True)
        with _hide_main_module(), _block_signals():
            self.process.start()
        child_pipe.close()  # the worker holds the only other end: its death ends a read here

    def call(self, call: tuple[Callable[..., Any], tuple[Any, ...]]) -> tuple[bool, Any]:
        """(True, result) or (False, exception)."""
        self.pipe.send(call)
        is_done, value = self.pipe.recv()
        return is_done, value

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve_calls(pipe: Connection, initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
    """Main function of a worker of a WorkerPool.

    It ignores stop signals, which a terminal sends to every process: the parent handles them, and workers end with it.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the parent is gone
        try:
            initializer(*initargs)
        except Exception as error:
            pipe.recv()
            pipe.send((False, _with_traceback(error)))
            return
        while True:
            fn, args = pipe.recv()
            try:
                answer = True, fn(*args)
            except Exception as error:
                answer = False, _with_traceback(error)
            pipe.send(answer)
            del fn, args, answer


def _with_traceback(error: Exception) -> Exception:
    """The error with its traceback as a note, since a traceback cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(format_error(error))
    return error


def describe_exit(exit_code: int | None) -> str:
    """How a process ended, and why that may have been."""
    if exit_code is None or exit_code >= 0:
        return f"exited with code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"was killed ({name}{', often for lack of memory' if name == 'SIGKILL' else ''})"


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
    """Block the stop signals in a process started inside until it ignores them itself, seconds later."""
    resource_tracker.ensure_running()  # started later, it would unblock the signals
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


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
    with raise_on_stop():
        if num_workers == 1:
            _run_serial(deque(jobs), on_end)
        else:
            _run_parallel(deque(jobs), num_workers, on_end)


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
                    raise Interrupted(RESUME_HINT)
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
        hint = ": try fewer jobs" if self.process.exitcode == -signal.SIGKILL else ""
        return f"its process {self.process.pid} {describe_exit(self.process.exitcode)}{hint}"


def _wait_ready(busy: Sequence[_Worker]) -> list[_Worker]:
    """Wait for the first worker that has sent its result or died; return all that have."""
    ready = set(wait([handle for worker in busy for handle in (worker.pipe, worker.process.sentinel)]))
    return [worker for worker in busy if worker.pipe in ready or worker.process.sentinel in ready]


def _worker_main(pipe: Connection, threads: int) -> None:
    os.environ[THREADS_VARIABLE] = str(threads)  # read by torch and numpy, which the first job imports
    os.setpgrp()  # signals of the terminal or of `timeout` go to the parent only, which forwards SIGTERM once
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError, KeyboardInterrupt), raise_on_stop():  # no more jobs, or interrupted while idle
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
