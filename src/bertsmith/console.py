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
        is_warning = record.levelno >= logging.WARNING
        print_line("warning: " * is_warning + record.getMessage(), keep_lines=not is_warning)


# C0 and C1 controls, DEL, and marks that change the direction of text: they could move the cursor, retitle or recolour a
# terminal, or forge a line. Texts, labels, column names and file names may contain them.
_CONTROL_CODES = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROL_CODES} | {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}
_ESCAPES_OF_LINES = {code: escape for code, escape in _ESCAPES.items() if code not in (ord("\n"), ord("\t"))}


def escape_controls(text: str, keep_lines: bool = False) -> str:
    """Control characters as \\uXXXX, which is also valid JSON; with `keep_lines`, line breaks and tabs stay."""
    return text.translate(_ESCAPES_OF_LINES if keep_lines else _ESCAPES)


def print_line(message: str, keep_lines: bool = True) -> None:
    """Print a message on stderr. Whatever is printed goes through here or `print_result`."""
    print(escape_controls(message, keep_lines), file=sys.stderr, flush=True)


def print_result(*lines: str) -> None:
    """Print results on stdout, a line each and at once: JSON, or pages of help."""
    print_text("".join(line + "\n" for line in lines))


def print_text(text: str) -> None:
    """Print text, or a piece of it, on stdout."""
    sys.stdout.write(escape_controls(text, keep_lines=True))
    sys.stdout.flush()


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

        rows = [tuple(map(escape_controls, row)) for row in rows]
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
