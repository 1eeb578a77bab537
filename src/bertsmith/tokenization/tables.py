"""Records of .tsv, .csv and .jsonl files, compressed or not, each with its line number."""

import codecs
import csv
import json
import re
import threading
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from .files import read_decompressed

SUPPORTED_FORMATS = ".tsv, .csv or .jsonl, also compressed (.gz .xz .bz2 .zst)"
_COMPRESSED_SUFFIXES, _SEPARATORS = {".gz", ".xz", ".bz2", ".zst"}, {".tsv": "\t", ".csv": ",", ".jsonl": "", ".ndjson": ""}
# Code points of `surrogateescape`: invalid bytes survive decoding, so that the line can be reported.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_MAX_FIELD_CHARS = 2**31 - 1
_field_limit_lock = threading.RLock()


class TableRecord(NamedTuple):
    line: int
    values: dict[str, Any]  # by column name


class InvalidRecord(NamedTuple):
    """A row that cannot be parsed, and why; other rows may be valid."""

    line: int
    message: str


class LineReader:
    """Iterates over (line number from 1, line without its line end); invalid UTF-8 bytes become lone surrogates."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes_read = path, 0  # bytes of the (compressed) file read so far

    def __iter__(self) -> Iterator[tuple[int, str]]:
        remainder, lines_read = b"", 0
        for data, bytes_read in read_decompressed(self.path):
            self.bytes_read = bytes_read
            *complete_lines, remainder = (remainder + data).split(b"\n")
            for line, text in enumerate(complete_lines, lines_read + 1):
                yield line, _decode_line(text, line)
            lines_read += len(complete_lines)
        if remainder:
            yield lines_read + 1, _decode_line(remainder, lines_read + 1)


def read_records(lines: LineReader, number_columns: bool = False) -> Iterator[TableRecord | InvalidRecord]:
    """Every non-blank row as a TableRecord, or an InvalidRecord if it cannot be parsed. .tsv has no quoting.

    The first row is the header, unless `number_columns`: then columns are named "0", "1", ... and there is no header.
    """
    path = lines.path
    if is_json(path):
        yield from _read_jsonl(lines)
        return
    rows = _read_csv(lines) if _separator(path) == "," else _read_tsv(lines)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path} is empty; it needs a header with column names, such as text and label")
    if isinstance(first, InvalidRecord):
        raise UserError(
            f"{path}, line {first.line:,}: {first.message}; the first line must be the header, with the column names"
        )
    if number_columns:
        names, rows = [str(index) for index in range(len(first[1]))], chain([first], rows)
    else:
        names = [name.strip() for name in first[1]]
    for row in rows:
        yield row if isinstance(row, InvalidRecord) else _make_record(row, names)


def is_json(path: Path) -> bool:
    return not _separator(path)


def missing_column_message(column: str, columns: list[str], setting: str) -> str:
    """Error text for a missing column: the columns that exist, and the setting that selects one."""
    close_matches = get_close_matches(column, columns, n=1, cutoff=0.5) or ["..."]
    return f"has no column {column!r}; its columns: {', '.join(columns)}; set {setting}={close_matches[0]}"


def preview_json(value: Any) -> str:
    """A value as JSON, truncated to 40 characters, for error messages."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 40 else f"{text[:36]}..."


def _separator(path: Path) -> str:
    name = Path(path.stem) if path.suffix.lower() in _COMPRESSED_SUFFIXES else path
    if (suffix := name.suffix.lower()) not in _SEPARATORS:
        raise UserError(f"{path} has an unknown table format; give {SUPPORTED_FORMATS}")
    return _SEPARATORS[suffix]


def _make_record(row: tuple[int, list[str]], names: list[str]) -> TableRecord | InvalidRecord:
    line, values = row
    if len(values) != len(names):
        return InvalidRecord(line, f"{len(values)} fields instead of {len(names)} ({', '.join(names)})")
    return TableRecord(line, dict(zip(names, values, strict=True)))


def _read_tsv(lines: LineReader) -> Iterator[tuple[int, list[str]] | InvalidRecord]:
    for line, text in lines:
        if _NOT_UTF8.search(text):
            yield InvalidRecord(line, "it is not UTF-8")
        elif text:
            yield line, text.split("\t")


def _read_csv(lines: LineReader) -> Iterator[tuple[int, list[str]] | InvalidRecord]:
    reader = csv.reader((f"{text}\n" for _, text in lines), strict=True)
    while True:
        line = reader.line_num + 1  # first line of the row: a quoted field may span several
        try:
            values = _next_csv_row(reader)
        except csv.Error as error:
            yield InvalidRecord(line, f"{error}; is a quote not closed, or not doubled?")
            continue
        if values is None:
            return
        if any(map(_NOT_UTF8.search, values)):
            yield InvalidRecord(line, "it is not UTF-8")
        elif values:
            yield line, values


def _next_csv_row(rows: Iterator[list[str]]) -> list[str] | None:
    """The next row, of fields of any length. The limit of the csv module, 131,072 characters, is one for the whole process."""
    with _field_limit_lock:
        limit = csv.field_size_limit(_MAX_FIELD_CHARS)
        try:
            return next(rows, None)
        finally:
            csv.field_size_limit(limit)


def _read_jsonl(lines: LineReader) -> Iterator[TableRecord | InvalidRecord]:
    for line, text in lines:
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield InvalidRecord(line, f"it is not JSON: {error}")
            continue
        if _NOT_UTF8.search(text):
            yield InvalidRecord(line, "it is not UTF-8")
        elif not isinstance(value, dict):
            yield InvalidRecord(line, f'it is {preview_json(value)}, not an object such as {{"text": ..., "label": ...}}')
        else:
            yield TableRecord(line, value)


def _decode_line(data: bytes, line: int) -> str:
    data = data.removeprefix(codecs.BOM_UTF8) if line == 1 else data
    return data.removesuffix(b"\r").decode("utf-8", "surrogateescape")
