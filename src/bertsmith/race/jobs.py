"""Pieces of work side by side, each in a process of its own: one that fails, or dies, is told of and stops no other."""

import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from ..errors import BadInput, Stopped
from ..workers import another_main

THREADS = "OMP_NUM_THREADS"
PATIENCE = 30.0  # seconds that work has to save itself when it is to stop


@dataclass(frozen=True)
class Job:
    """`work(*given)` is called; both must be such that another process can be sent them."""

    name: str
    work: Callable[..., None]
    given: tuple[Any, ...]


Ended = Callable[[Job, str | None], Sequence[Job]]  # told what failed, or None; gives what may be begun now


def carried_out(jobs: Sequence[Job], count: int, ended: Ended) -> None:
    """All jobs, and those that `ended` adds when one ends, `count` at a time; a single one at a time is done right here."""
    if count == 1:
        _here(deque(jobs), ended)
        return
    waiting, running = deque(jobs), dict[Any, tuple[Job, Any, Connection]]()
    try:
        while waiting or running:
            while waiting and len(running) < count:
                job = waiting.popleft()
                process, told = _started(job, count)
                running[process.sentinel] = (job, process, told)
            for sentinel in wait(list(running)):
                job, process, told = running.pop(sentinel)
                fault = _heard(process, told)
                if fault == "stopped":
                    raise Stopped("run the same command again to go on")
                waiting.extend(ended(job, fault))
    finally:
        _stopped([process for _, process, _ in running.values()])


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


def _started(job: Job, count: int) -> tuple[Any, Connection]:
    spawn = get_context("spawn")
    told, tells = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_child, args=(job, tells), name=job.name)
    with another_main(), _fewer_threads(count):
        process.start()
    tells.close()
    return process, told


def _heard(process: Any, told: Connection) -> str | None:
    """What the process said; one that died without a word is told of by how it died."""
    process.join()
    try:
        fault = told.recv() if told.poll() else f"its process died ({_death(process.exitcode)})"
    except EOFError:
        fault = f"its process died ({_death(process.exitcode)})"
    told.close()
    return None if fault is None else str(fault)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name}, often for want of memory: try fewer jobs" if name == "SIGKILL" else name
    return f"exit code {code}"


def _child(job: Job, tells: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: _interrupt())
    try:
        job.work(*job.given)
        tells.send(None)
    except (Stopped, KeyboardInterrupt):
        tells.send("stopped")
    except BaseException as error:
        tells.send(told_of(error))


def _interrupt() -> None:
    raise KeyboardInterrupt


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


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stopped(processes: Sequence[Any]) -> None:
    """They are asked, and have a while to save what they have; a run that is killed then goes on from its last save."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + PATIENCE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
