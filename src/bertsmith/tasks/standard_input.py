"""Rows of standard input (`data=-`), read as they arrive: one text per line, or one JSON object per line.

The first line that is not blank decides. Only the rows of a chunk are in memory, and a chunk ends where no further line waits.
"""

import codecs
import io
import json
import select
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..errors import UserError
from ..tokenization.tables import UTF8, InvalidRecord, clean_line, find_decoding_error, normalize_encoding, read_json_lines
from .base import Example, Task
from .requests import TextRow
from .table_rows import BadRow, ExampleRow, make_bad_row

NAMES = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")  # values of `data` that mean standard input
PATH = Path("stdin.jsonl")  # of its rows, in messages
READ_BYTES = 1 << 16
MAX_LINE_CHARS = 1 << 28

E = TypeVar("E")


def is_standard_input(data: str | None) -> bool:
    return data in NAMES


class InputLines:
    """Iterates over (line number from 1, line) of a binary stream, each as soon as it is complete.

    Bytes that are not text in the encoding become lone surrogates, which `find_decoding_error` reports.
    """

    def __init__(self, stream: BinaryIO, encoding: str = UTF8) -> None:
        self.encoding, self._stream, self._line = normalize_encoding(encoding), stream, 0
        self._decoder = codecs.getincrementaldecoder(self.encoding)("surrogateescape")
        self._complete, self._remainder, self._is_at_end = deque[str](), "", False

    def __iter__(self) -> Iterator[tuple[int, str]]:
        while self._complete or self._read():
            self._line += 1
            yield self._line, clean_line(self._complete.popleft())

    @property
    def is_waiting(self) -> bool:
        """Whether the next line has not arrived yet."""
        while not self._complete and not self._is_at_end:
            if not _has_data(self._stream):
                return True
            self._read_once()
        return False

    def find_decoding_error(self, text: str) -> str | None:
        return find_decoding_error(text, self.encoding)

    def starts_with_object(self) -> bool:
        """Whether the first line that is not blank is a JSON object; waits for it and leaves it to be read."""
        position = 0
        while True:
            while position < len(self._complete):
                if line := clean_line(self._complete[position]).strip():
                    return _is_object(line)
                position += 1
            if self._is_at_end:
                return False
            self._read_once()

    def _read(self) -> bool:
        """Read until a line is complete; False at the end."""
        while not self._complete and not self._is_at_end:
            self._read_once()
        return bool(self._complete)

    def _read_once(self) -> None:
        data = self._stream.read1(READ_BYTES)  # type: ignore[attr-defined]
        self._is_at_end = not data
        *lines, self._remainder = (self._remainder + self._decoder.decode(data, final=not data)).split("\n")
        if self._is_at_end and self._remainder:
            lines.append(self._remainder)
        if len(self._remainder) > MAX_LINE_CHARS:
            raise UserError(f"standard input: a line is longer than {MAX_LINE_CHARS:,} characters; give one text per line")
        self._complete.extend(lines)


def open_standard_input(encoding: str = UTF8) -> InputLines:
    if sys.stdin is None:
        raise UserError("data=-: there is no standard input; give data=FILE")
    stream = getattr(sys.stdin, "buffer", None)  # none where a program has put a text stream in its place
    return InputLines(io.BytesIO(sys.stdin.read().encode(encoding)) if stream is None else stream, encoding)


def read_input_requests(task: Task, lines: InputLines, skip_bad: bool = False) -> Iterator[Example | BadRow]:
    """An example of the task per row, by itself: rows have no document context. Labels are ignored."""
    columns = {**getattr(task, "columns", {}), **dict.fromkeys(task.label_fields, "")}

    def parse_row(row: ExampleRow) -> Example:
        return replace(task.parse_row(row), source=str(row.path), line=row.line, id=row.id)

    return _parse_rows(lines, parse_row, columns, getattr(task, "hex", False), skip_bad)


def read_input_texts(lines: InputLines, columns: Mapping[str, str], skip_bad: bool = False) -> Iterator[TextRow | BadRow]:
    """Every line, or the field `text` of every JSON object."""
    return _parse_rows(lines, lambda row: TextRow(row.get_text("text"), row.id), columns, False, skip_bad)


def iter_available(rows: Iterator[E], size: int, lines: InputLines) -> Iterator[list[E]]:
    """The rows in lists of up to `size`; a list ends where the next line has not arrived yet, or cannot be used."""
    chunk: list[E] = []
    error = None
    while error is None:
        try:
            chunk.append(next(rows))
        except StopIteration:
            break
        except UserError as bad_row:
            error = bad_row
        if chunk and (error or len(chunk) == size or lines.is_waiting):
            yield chunk
            chunk = []
    if chunk:
        yield chunk
    if error:
        raise error


def _parse_rows(
    lines: InputLines, parse_row: Callable[[ExampleRow], E], columns: Mapping[str, str], is_hex: bool, skip_bad: bool
) -> Iterator[E | BadRow]:
    """A BadRow is raised, or yielded in its place with `skip_bad`."""
    is_empty = True
    for row in _read_rows(lines, columns, is_hex):
        is_empty = False
        result: E | BadRow
        try:
            result = row if isinstance(row, BadRow) else parse_row(row)
        except BadRow as error:
            result = error
        if isinstance(result, BadRow) and not skip_bad:
            raise result
        yield result
    if is_empty:
        raise UserError("standard input is empty; give one text per line, or one JSON object per line")


def _read_rows(lines: InputLines, columns: Mapping[str, str], is_hex: bool) -> Iterator[ExampleRow | BadRow]:
    if lines.starts_with_object():
        for record in read_json_lines(lines):
            if isinstance(record, InvalidRecord):
                yield make_bad_row(PATH, record)
            else:
                yield ExampleRow(record.values, PATH, record.line, columns, is_hex)
        return
    for line, text in lines:
        if error := lines.find_decoding_error(text):
            yield make_bad_row(PATH, InvalidRecord(line, error))
        else:
            yield ExampleRow({"text": text}, PATH, line, {}, is_hex)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return line.startswith('{"')  # a broken object is reported as such


def _has_data(stream: BinaryIO) -> bool:
    """Whether reading would return at once, at the end of the stream too."""
    try:
        return bool(select.select([stream.fileno()], [], [], 0)[0])
    except (OSError, ValueError, AttributeError):  # not a file of the system: nothing to wait for
        return True
