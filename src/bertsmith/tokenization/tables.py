"""Records of .tsv, .csv, .jsonl and .parquet files, each with its line number, in UTF-8 or another encoding."""

import codecs
import csv
import json
import re
import threading
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import UserError
from .files import read_decompressed
from .parquet import read_parquet_rows

SUPPORTED_FORMATS = ".tsv, .csv or .jsonl, also compressed (.gz .xz .bz2 .zst), or .parquet"
UTF8, BYTE_ORDER_MARK = "utf-8", "\ufeff"
_COMPRESSED_SUFFIXES = {".gz", ".xz", ".bz2", ".zst"}
ROWS_SUFFIX = ".rows.jsonl"  # of the file that holds rows given in Python, see rows.py
_SEPARATORS = {".tsv": "\t", ".csv": ",", ".jsonl": "", ".ndjson": "", ".parquet": ""}
# Code points of `surrogateescape`: invalid bytes survive decoding, so that the line can be reported.
_NOT_DECODED = re.compile("[\udc80-\udcff]")
_SURROGATE, _SURROGATE_ESCAPE = re.compile("[\ud800-\udfff]"), re.compile(r"\\u[dD][89a-fA-F]")
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
    """Iterates over (line number from 1, line without its line end and byte order mark) of a text file.

    Bytes that are not text in the encoding become lone surrogates, which `find_decoding_error` reports.
    """

    def __init__(self, path: Path, encoding: str = UTF8) -> None:
        self.path, self.encoding = path, normalize_encoding(encoding)
        self.bytes_read = 0  # bytes of the (compressed) file read so far

    def __iter__(self) -> Iterator[tuple[int, str]]:
        remainder, lines_read = "", 0
        for text in self._decode():
            *complete_lines, remainder = (remainder + text).split("\n")
            for line, content in enumerate(complete_lines, lines_read + 1):
                yield line, clean_line(content)
            lines_read += len(complete_lines)
        if remainder.removeprefix(BYTE_ORDER_MARK):
            yield lines_read + 1, clean_line(remainder)

    def find_decoding_error(self, text: str) -> str | None:
        """Why a line cannot be used: it is not text in the file's encoding; None if it is."""
        return find_decoding_error(text, self.encoding)

    def _decode(self) -> Iterator[str]:
        """Decoded text in pieces that end where a line ends, except for the last one."""
        remainder = b""
        if self.encoding != UTF8:  # not self-synchronizing: decoded from the start, instead of line by line
            decoder = codecs.getincrementaldecoder(self.encoding)("surrogateescape")
            for data, bytes_read in read_decompressed(self.path, self.encoding.startswith(("utf-16", "utf-32"))):
                self.bytes_read = bytes_read
                yield decoder.decode(data)
            yield decoder.decode(b"", final=True)
            return
        for data, bytes_read in read_decompressed(self.path):
            self.bytes_read = bytes_read
            lines, newline, remainder = (remainder + data).rpartition(b"\n")
            yield (lines + newline).decode(UTF8, "surrogateescape")
        yield remainder.decode(UTF8, "surrogateescape")


def find_decoding_error(text: str, encoding: str) -> str | None:
    """`LineReader.find_decoding_error` of a part of a line."""
    if not _NOT_DECODED.search(text):
        return None
    return f"it is not {encoding.upper()} (encoding=..., in finetune data.encoding=..., reads gb18030, latin-1 and others)"


def normalize_encoding(encoding: str, key: str = "encoding") -> str:
    """The encoding's name in Python, such as gb18030 or iso8859-1; an unknown one is an error that names `key`."""
    try:
        "a".encode(encoding)
    except LookupError:
        raise UserError(f"{key}={encoding} is not an encoding of text; give for example utf-8, gb18030 or latin-1") from None
    name = codecs.lookup(encoding).name
    return UTF8 if name == "utf-8-sig" else name  # byte order marks are removed in any case


def read_records(lines: LineReader, number_columns: bool = False) -> Iterator[TableRecord | InvalidRecord]:
    """Every non-blank row as a TableRecord, or an InvalidRecord if it cannot be parsed. .tsv has no quoting.

    The first row is the header, unless `number_columns`: then columns are named "0", "1", ... and there is no header. Rows of
    .parquet are numbered from 1.
    """
    path = lines.path
    if is_parquet(path):
        for line, values in enumerate(read_parquet_rows(path), 1):
            yield InvalidRecord(line, problem) if (problem := find_lone_surrogate(values)) else TableRecord(line, values)
        return
    if is_json(path):
        yield from read_json_lines(lines)
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
    """Whether the rows are objects with values of any type (.jsonl, .parquet), not texts under a header."""
    return not _separator(path)


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def locate(path: Path, line: int) -> str:
    """`FILE, line N`; `FILE, row N` in .parquet, and `NAME, row N` in rows of a Python program."""
    return f"{name_file(path)}, {'row' if is_parquet(path) or path.name.endswith(ROWS_SUFFIX) else 'line'} {line:,}"


def name_file(path: str | Path) -> str:
    """The path for messages and records; of a file that holds rows of a Python program, what they were given as."""
    name = Path(path).name
    return name.removesuffix(ROWS_SUFFIX) if name.endswith(ROWS_SUFFIX) else str(path)


def find_lone_surrogate(value: Any, location: str = "") -> str | None:
    """Where a lone surrogate (half of a character beyond U+FFFF, which no UTF-8 file can hold) is in a JSON value."""
    if isinstance(value, str):
        match = _SURROGATE.search(value)
        return f"{location or 'the text'} has the lone surrogate \\u{ord(match[0]):04x}, half of a character" if match else None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    problems = (
        find_lone_surrogate(name, "a field name") or find_lone_surrogate(item, location or str(name)) for name, item in items
    )
    return next(filter(None, problems), None)


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
        if error := lines.find_decoding_error(text):
            yield InvalidRecord(line, error)
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
        if problem := next(filter(None, map(lines.find_decoding_error, values)), None):
            yield InvalidRecord(line, problem)
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


class Lines(Protocol):
    """Numbered lines in an encoding: a `LineReader`, or another source."""

    def __iter__(self) -> Iterator[tuple[int, str]]: ...

    def find_decoding_error(self, text: str) -> str | None: ...


def read_json_lines(lines: Lines) -> Iterator[TableRecord | InvalidRecord]:
    """A record for each line that is not blank: its JSON object."""
    for line, text in lines:
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield InvalidRecord(line, f"it is not JSON: {error}")
            continue
        if decoding_error := lines.find_decoding_error(text):
            yield InvalidRecord(line, decoding_error)
        elif not isinstance(value, dict):
            yield InvalidRecord(line, f'it is {preview_json(value)}, not an object such as {{"text": ..., "label": ...}}')
        elif _SURROGATE_ESCAPE.search(text) and (problem := find_lone_surrogate(value)):
            yield InvalidRecord(line, problem)
        else:
            yield TableRecord(line, value)


def clean_line(line: str) -> str:
    """A line without its carriage return and byte order mark."""
    # A byte order mark starts the first line, and where files were joined, others.
    return line.removeprefix(BYTE_ORDER_MARK).removesuffix("\r")
