"""Work for jobs, in a file that another process can import quickly."""

import os
import signal
from pathlib import Path

from bertsmith.errors import BadInput, Stopped


def noted(path: Path, text: str) -> None:
    path.write_text(text)


def wrong() -> None:
    raise BadInput("a person's mistake")


def fault() -> None:
    raise ZeroDivisionError("a programmer's\nin two lines")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stops() -> None:
    raise Stopped("asked to")
