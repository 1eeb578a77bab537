"""Rows of .tsv, .csv, .jsonl, .parquet and .txt files as examples of a task, with columns renamed and errors by file and line.

`read_rows` yields rows, `read_examples` parses them, `ExampleReader` raises at invalid rows or skips and counts them.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import UserError
from ..tokenization import tables
from ..tokenization.hex_bytes import find_hex_error
from ..tokenization.tables import UTF8, InvalidRecord, LineReader, is_json, locate, preview_json, read_records

E = TypeVar("E")


SKIP_HINT = "skip_bad=true (data.skip_bad=true in finetune)"
COMPRESSED_SUFFIXES = {".gz", ".xz", ".bz2", ".zst"}
MAX_NUMBER = 1e18  # of a label: its square, the loss of a prediction of 0, must be finite in float32 (3.4e38)


class BadRow(UserError):
    """An invalid row; with `skip_bad` reading continues without it."""


@dataclass(frozen=True)
class ExampleRow:
    """Values of a row by the column names of the file; the methods take the column names of the task."""

    values: dict[str, Any]
    path: Path
    line: int
    columns: Mapping[str, str] = field(default_factory=dict)  # name in the task -> name in the file
    is_hex: bool = False  # texts are hex-encoded bytes

    def require(self, name: str) -> Any:
        """The value; raises if the column is missing (listing those of the file) or the value is null."""
        if (value := self._get_column(name)) is None:
            raise self.error(f"{name} is null")
        return value

    def get(self, name: str) -> Any:
        """The value, or None if there is no such column."""
        return self.values.get(column) if (column := self.columns.get(name, name)) else None

    def get_text(self, name: str) -> str:
        if not isinstance(value := self.require(name), str):
            raise self.error(f"{name} is {preview_json(value)}, not a text")
        if self.is_hex and (problem := find_hex_error(value)):
            raise self.error(f"{name} is not hex: {problem}")
        return value

    def get_number(self, name: str) -> float | None:
        """The value as a float of at most `MAX_NUMBER`; None if there is no such column."""
        if (value := self.get(name)) is None:
            return None
        try:
            number = float("" if isinstance(value, bool | list | dict) else value)
        except (ValueError, OverflowError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise self.error(f"{name} is {preview_json(value)}, not a number")
        if abs(number) > MAX_NUMBER:
            raise self.error(f"{name} is {preview_json(value)}, too large to train on (at most {MAX_NUMBER:g})")
        return number

    def get_cell(self, name: str) -> str:
        """A value of any type as text, empty for null; raises if the column is missing."""
        value = self._get_column(name)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)

    @property
    def id(self) -> str | int:
        """Value of the field or column `id`; empty if there is none."""
        value = self.get("id")
        return value if isinstance(value, str | int) and not isinstance(value, bool) else ""

    @property
    def location(self) -> str:
        return locate(self.path, self.line)

    def error(self, problem: str) -> BadRow:
        return make_bad_row(self.path, InvalidRecord(self.line, problem))

    def _get_column(self, name: str) -> Any:
        if self.columns.get(name, name) not in self.values:
            is_json_row = not is_plain_text(self.path) and is_json(self.path)
            error_class = BadRow if is_json_row else UserError  # not skippable: a column missing in a header is in no row
            raise error_class(
                f"{self.location if is_json_row else self.path} {missing_column_message(name, self.columns, list(self.values))}"
            )
        return self.get(name)


def read_rows(
    path: Path, columns: Mapping[str, str] | None = None, is_hex: bool = False, encoding: str = UTF8
) -> Iterator[ExampleRow | BadRow]:
    """Every row that is not blank, or a BadRow in its place.

    The header gives the column names, unless the values of `columns` are numbers ("0" is the first column); an empty name
    hides a column. Quotes have no meaning in .tsv. Every line of a .txt is a `text`, including blank lines, so that
    predictions align with lines.
    """
    columns = columns or {}
    if is_plain_text(path):
        yield from _read_lines(path, is_hex, encoding)
        return
    file_columns = [name for name in columns.values() if name]
    by_number = bool(file_columns) and all(name.isdigit() for name in file_columns)
    for record in read_records(LineReader(path, encoding), by_number):
        if isinstance(record, InvalidRecord):
            yield make_bad_row(path, record)
        else:
            yield ExampleRow(record.values, path, record.line, columns, is_hex)


def read_examples(
    path: Path, parse_row: Callable[[ExampleRow], E], columns: Mapping[str, str], is_hex: bool = False, encoding: str = UTF8
) -> Iterator[E | BadRow]:
    """`parse_row` of every row, or a BadRow in its place."""
    for row in read_rows(path, columns, is_hex, encoding):
        example: E | BadRow
        try:
            example = row if isinstance(row, BadRow) else parse_row(row)
        except BadRow as error:
            example = error
        yield example


class ExampleReader(Generic[E]):
    """Iterator over valid examples; `num_skipped` counts invalid rows, `errors` holds the messages of the first five."""

    def __init__(self, path: Path, rows: Iterator[E | BadRow], skip_bad: bool = False) -> None:
        self.path, self.num_skipped, self.errors = path, 0, list[str]()
        self._rows, self._skip_bad, self._count = rows, skip_bad, 0

    def __iter__(self) -> "ExampleReader[E]":
        return self

    def describe_skipped(self) -> str:
        """How many rows were skipped, and the first one's error without its way out."""
        noun = "row" if self.num_skipped == 1 else "rows"
        name = tables.name_file(self.path)
        return f"{name}: skipped {self.num_skipped:,} invalid {noun}; the first: {self.errors[0].split('; ')[0]}"

    def iter_with_errors(self) -> Iterator[E | BadRow]:
        """Examples and BadRows in file order; raises only if the file is empty."""
        is_empty = True
        for row in self._rows:
            is_empty = False
            yield row
        if is_empty:
            raise UserError(f"{self.path} has no usable rows")

    def __next__(self) -> E:
        for example in self._rows:
            if not isinstance(example, BadRow):
                self._count += 1
                return example
            if not self._skip_bad:
                raise example
            self.num_skipped, self.errors = self.num_skipped + 1, [*self.errors, str(example)][:5]
        if not self._count:
            raise UserError(
                f"{tables.name_file(self.path)} has no usable rows" + (f": {self.errors[0]}" if self.errors else "")
            )
        raise StopIteration


def missing_label_error(source: str, line: int, name: str, columns: Mapping[str, str]) -> UserError:
    """Error for an example without a label: the column is missing in the file, or the value in the row."""
    available = _read_column_names(Path(source), columns) if source else []
    if available and columns.get(name, name) not in available:
        return UserError(f"{tables.name_file(source)} {missing_column_message(name, columns, available)}")
    location = locate(Path(source), line) if source else "an example"
    return UserError(f"{location} has no {name}; training and evaluation need one for every example")


def _read_column_names(path: Path, columns: Mapping[str, str]) -> list[str]:
    """Columns of the first valid row; empty if the file has another encoding."""
    try:
        valid_rows = (row for row in read_rows(path, columns) if isinstance(row, ExampleRow))
        return list(first.values) if (first := next(valid_rows, None)) else []
    except UserError:
        return []


def missing_column_message(name: str, columns: Mapping[str, str], available: list[str]) -> str:
    """Message for a missing column: the columns of the file, and the key that sets the right one."""
    return tables.missing_column_message(
        columns.get(name, name), available, f"columns.{name}, or in finetune data.columns.{name}"
    )


def is_plain_text(path: Path) -> bool:
    """Whether a file is plain text with one text per line, by its suffix."""
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED_SUFFIXES else path).suffix.lower() in (".txt", ".text")


def _read_lines(path: Path, is_hex: bool, encoding: str) -> Iterator[ExampleRow | BadRow]:
    for line, text in (lines := LineReader(path, encoding)):
        if error := lines.find_decoding_error(text):
            yield make_bad_row(path, InvalidRecord(line, error))
        else:
            yield ExampleRow({"text": text}, path, line, {}, is_hex)


def make_bad_row(path: Path, record: InvalidRecord) -> BadRow:
    """The error of an invalid row, with its file and line and the way out."""
    return BadRow(f"{locate(path, record.line)}: {record.message}; fix the row, or skip such rows with {SKIP_HINT}")
