"""Ctrl-C (SIGINT) and SIGTERM request a stop between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """True once a stop signal has been received."""

    def __init__(self) -> None:
        self._requested = False

    def __bool__(self) -> bool:
        return self._requested

    def request(self) -> None:
        self._requested = True


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Inside the block, the first signal sets the StopRequest and restores the old handler, so that a second one takes effect.

    Only the main thread can set handlers; in other threads the request stays False.
    """
    stop_request = StopRequest()
    old_handlers: dict[int, Any] = {}

    def handle(signal_number: int, frame: FrameType | None) -> None:
        stop_request.request()
        signal.signal(signal_number, old_handlers[signal_number])

    if threading.current_thread() is threading.main_thread():
        for stop_signal in (signal.SIGTERM, signal.SIGINT):
            old_handlers[stop_signal] = _current_handler(stop_signal)
            signal.signal(stop_signal, handle)
    try:
        yield stop_request
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _current_handler(signal_number: int) -> Any:
    """The current handler; SIG_DFL for one that was not set from Python, which cannot be restored."""
    return signal.getsignal(signal_number) or signal.SIG_DFL
