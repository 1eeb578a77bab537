"""Ctrl-C and SIGTERM ask a run to stop between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """True once a signal has come."""

    def __init__(self) -> None:
        self._requested = False

    def __bool__(self) -> bool:
        return self._requested

    def request(self) -> None:
        self._requested = True


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """While inside, the first signal only asks; a second one does what it always did. Outside the main thread, nothing."""
    asked = StopRequest()
    old: dict[int, Any] = {}

    def heard(number: int, frame: FrameType | None) -> None:
        asked.request()
        signal.signal(number, old[number])

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            old[number] = _current_handler(number)
            signal.signal(number, heard)
    try:
        yield asked
    finally:
        for changed, handler in old.items():
            signal.signal(changed, handler)


def _current_handler(signal_number: int) -> Any:
    """What is set now; None stands for one that was not set from Python, which cannot be set back."""
    return signal.getsignal(signal_number) or signal.SIG_DFL
