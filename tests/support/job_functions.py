"""Functions for the tests of `run_jobs`, in a module that a worker process imports quickly."""

import os
import signal
import time
from pathlib import Path

from bertsmith.errors import Interrupted, UserError


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


def write_pid(path: Path) -> None:
    path.write_text(str(os.getpid()))


def raise_user_error() -> None:
    raise UserError("a person's mistake")


def raise_bug() -> None:
    raise ZeroDivisionError("a programmer's\nin two lines")


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise Interrupted("asked to")


def ignore_stop(path: Path) -> None:
    """Finishes normally although SIGTERM interrupts it."""
    path.write_text("begun")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        path.write_text("done")


def interrupt_when_exists(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)
    interrupt()


def write_threads(path: Path) -> None:
    path.write_text(os.environ["OMP_NUM_THREADS"])


def kill_self_once(path: Path, value: int) -> int:
    """Dies the first time it is called with this path."""
    if not path.exists():
        path.touch()
        kill_self()
    return value * 2
