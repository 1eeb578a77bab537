"""What a person sees: progress on a terminal, words and tables on stderr, silence where it was asked for."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class Console:
    """All of it goes to stderr: stdout is for answers. A progress bar is drawn on a terminal only."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def info(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Said even when quiet: it may cost somebody an hour."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def print_table(self, title: str, rows: Sequence[tuple[str, ...]]) -> None:
        """Columns that align, one line a row; a Chinese character is as wide as two letters."""
        from rich.cells import cell_len

        sizes = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        self.info(title)
        for row in rows:
            cells = (cell + " " * (size - cell_len(cell)) for cell, size in zip(row, sizes, strict=True))
            self.info("  " + "  ".join(cells).rstrip())

    @contextmanager
    def progress_bar(self, title: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
        """Yields `advance(done, of)`."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda done, of: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(title, total=None)
            yield lambda done, of: progress.update(task, completed=done, total=of)
