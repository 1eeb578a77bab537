"""Messages, tables and progress bars on stderr."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class Console:
    """Writes to stderr, since stdout is for results. `quiet` suppresses all but warnings; progress bars need a terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def info(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Printed even when quiet, since an unseen warning may waste a long run."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

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
