"""Ctrl-C and SIGTERM ask a run to stop between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Asked:
    """True once a signal has come."""

    def __init__(self) -> None:
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def ask(self) -> None:
        self._asked = True


@contextmanager
def watched() -> Iterator[Asked]:
    """While inside, the first signal only asks; a second one does what it always did. Outside the main thread, nothing."""
    asked = Asked()
    old: dict[int, Any] = {}

    def heard(number: int, frame: FrameType | None) -> None:
        asked.ask()
        signal.signal(number, old[number])

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            old[number] = _handler(number)
            signal.signal(number, heard)
    try:
        yield asked
    finally:
        for changed, handler in old.items():
            signal.signal(changed, handler)


def _handler(number: int) -> Any:
    """What is set now; None stands for one that was not set from Python, which cannot be set back."""
    return signal.getsignal(number) or signal.SIG_DFL
