"""Work for jobs, in a file that another process can import quickly."""

import os
import signal
import time
from pathlib import Path

from bertsmith.errors import Interrupted, UserError


def noted(path: Path, text: str) -> None:
    path.write_text(text)


def signed(path: Path) -> None:
    path.write_text(str(os.getpid()))


def wrong() -> None:
    raise UserError("a person's mistake")


def fault() -> None:
    raise ZeroDivisionError("a programmer's\nin two lines")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stops() -> None:
    raise Interrupted("asked to")


def persists(path: Path) -> None:
    """Asked to stop, it comes to its end all the same."""
    path.write_text("begun")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        path.write_text("done")


def stops_after(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)
    stops()
