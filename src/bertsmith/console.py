"""Messages, tables and progress bars, on top of the standard `logging`: everything goes to the logger `bertsmith`.

The command line shows it on stderr, since stdout is for results; so do the functions of `bertsmith.api`, unless the program
has set up logging of its own, which then receives the messages.
"""

import codecs
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TextIO

logger = logging.getLogger("bertsmith")


class StderrHandler(logging.Handler):
    """Prints messages to the current sys.stderr, warnings with a prefix."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        print(prefix + record.getMessage(), file=sys.stderr, flush=True)


def escape_unencodable(stream: TextIO) -> None:
    """Write characters that the stream's encoding lacks (PYTHONIOENCODING=ascii) as \\uXXXX, which is also valid JSON."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors=JSON_ESCAPE)


def _json_escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    utf16 = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{utf16[index : index + 4]}" for index in range(0, len(utf16), 4)), error.end


JSON_ESCAPE = "bertsmith-json-escape"
codecs.register_error(JSON_ESCAPE, _json_escape)


@contextmanager
def log_to_stderr(only_if_unconfigured: bool = False) -> Iterator[None]:
    """Show messages on stderr; with `only_if_unconfigured`, not if handlers of the program already receive them."""
    if any(isinstance(handler, StderrHandler) for handler in logger.handlers) or (
        only_if_unconfigured and logger.hasHandlers()
    ):
        yield
        return
    handler, level = StderrHandler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class Console:
    """Logs messages and shows progress. `quiet` suppresses all but warnings; progress bars need a terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def info(self, text: str) -> None:
        if not self.quiet:
            logger.info("%s", text)

    def warn(self, text: str) -> None:
        """Logged even when quiet, since an unseen warning may waste a long run."""
        logger.warning("%s", text)

    def print_table(self, title: str, rows: Sequence[tuple[str, ...]]) -> None:
        """Rows in aligned columns, measured in terminal cells (a Chinese character takes two)."""
        from rich.cells import cell_len

        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        self.info(title)
        for row in rows:
            cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            self.info("  " + "  ".join(cells).rstrip())

    @contextmanager
    def progress_bar(self, title: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
        """Yields `update(completed, total)`; `unit="bytes"` prints sizes."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda completed, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        count_column = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), count_column, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(title, total=None)
            yield lambda completed, total: progress.update(task, completed=completed, total=total)
