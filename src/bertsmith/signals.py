"""The signals that stop a command: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (its terminal was closed).

The first one interrupts a stage, or lets a training save and stop. Signals that come within SAME_REQUEST_SECONDS of it are
the same request: coreutils' `timeout` signals a process and then its group. A later one ends the process at once. What a user
has set to be ignored (`nohup`) stays ignored. This module imports nothing heavy, since it is the first to be imported.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_REQUEST_SECONDS = 2.0
EXIT_STATUS = 130
RESUME_HINT = "run the same command again to resume"


class StopSignals:
    """Handler of the stop signals.

    on_first: called by the first signal. on_later: called by each one more than SAME_REQUEST_SECONDS after it.
    """

    def __init__(self, on_first: Callable[[], object], on_later: Callable[[int], object]) -> None:
        self.on_first, self.on_later = on_first, on_later
        self.first_at: float | None = None

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first_at is None:
            self.first_at = now
            self.on_first()
        elif now - self.first_at > SAME_REQUEST_SECONDS:
            self.on_later(signal_number)

    def install(self) -> dict[signal.Signals, Any]:
        """Handle the signals that are not ignored; returns the handlers before."""
        old_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        old_handlers = {number: handler for number, handler in old_handlers.items() if handler is not signal.SIG_IGN}
        for number in old_handlers:
            signal.signal(number, self)
        return old_handlers


class StopRequest:
    """True once a stop signal has been received."""

    def __init__(self) -> None:
        self._requested = False

    def __bool__(self) -> bool:
        return self._requested

    def request(self) -> None:
        self._requested = True


def end_process_on_stop() -> None:
    """For a program of ours, before its imports: until a stage runs, and after it, a stop signal ends the process at once."""
    StopSignals(end_process, lambda signal_number: end_process()).install()
    atexit.register(_ignore_stop_signals)  # registered first, called last: Python then restores what kills the process
    show_ignored = sys.unraisablehook

    def end_if_interrupted(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):  # raised in a callback of C code, which would go on
            end_process()
        show_ignored(ignored)

    sys.unraisablehook = end_if_interrupted


def end_process() -> NoReturn:
    """Exit now, with one line. As after a kill, the same command resumes from what is on disk."""
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"{show_cursor}interrupted: {RESUME_HINT}\n".encode())
    os._exit(EXIT_STATUS)


@contextmanager
def raise_on_stop() -> Iterator[None]:
    """Inside the block, the first stop signal raises KeyboardInterrupt, which leaves time to save and clean up."""
    with _on_first(_raise_interrupt):
        yield


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Inside the block, the first stop signal requests a stop between two steps."""
    stop_request = StopRequest()
    with _on_first(stop_request.request):
        yield stop_request


@contextmanager
def _on_first(action: Callable[[], object]) -> Iterator[None]:
    """Inside the block, the first stop signal calls `action`. In a program that is not ours, a later one does what it did
    before. Only the main thread can handle signals; in other threads this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    installed = next((h for h in map(signal.getsignal, STOP_SIGNALS) if isinstance(h, StopSignals)), None)
    if installed:
        outer_action, installed.on_first = installed.on_first, action
        try:
            yield
        finally:
            installed.on_first = outer_action
        return
    old_handlers: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in old_handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not set from Python, and cannot be restored

    def send_again(signal_number: int) -> None:
        restore()
        signal.raise_signal(signal_number)

    old_handlers |= StopSignals(action, send_again).install()
    try:
        yield
    finally:
        restore()


def _ignore_stop_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _raise_interrupt() -> NoReturn:
    raise KeyboardInterrupt
