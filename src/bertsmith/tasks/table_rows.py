"""Rows of tables as a task asks for them: by its own names for the columns, with bad ones named by file and line."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import UserError
from ..tokenization import tables
from ..tokenization.hex_bytes import find_hex_error
from ..tokenization.tables import InvalidRecord, LineReader, is_json, preview_json, read_records

E = TypeVar("E")


SKIP_HINT = "skip_bad=true (data.skip_bad=true in finetune)"
COMPRESSED_SUFFIXES = {".gz", ".xz", ".bz2", ".zst"}


class BadRow(UserError):
    """One row cannot be used; the others may be fine, and `skip_bad` goes on without it."""


@dataclass(frozen=True)
class ExampleRow:
    """What a row holds, by the file's own names; `need` and `get` ask by the task's names."""

    values: dict[str, Any]
    path: Path
    line: int
    columns: Mapping[str, str] = field(default_factory=dict)  # the task's name -> the file's
    is_hex: bool = False  # its texts are bytes written in hex

    def require(self, name: str) -> Any:
        """The value, or an error that names the columns there are; null is a bad row."""
        if (value := self._get_column(name)) is None:
            raise self.error(f"{name} is null")
        return value

    def get(self, name: str) -> Any:
        """The value, or None where the file has no such column."""
        return self.values.get(column) if (column := self.columns.get(name, name)) else None

    def get_text(self, name: str) -> str:
        if not isinstance(value := self.require(name), str):
            raise self.error(f"{name} is {preview_json(value)}, not a text")
        if self.is_hex and (wrong := find_hex_error(value)):
            raise self.error(f"{name} is not hex: {wrong}")
        return value

    def get_number(self, name: str) -> float | None:
        """None where the column is not there."""
        if (value := self.get(name)) is None:
            return None
        try:
            number = float("" if isinstance(value, bool | list | dict) else value)
        except (ValueError, OverflowError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise self.error(f"{name} is {preview_json(value)}, not a number")
        return number

    def get_cell(self, name: str) -> str:
        """A value of any kind as text, empty where it is null; the column must be there."""
        value = self._get_column(name)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)

    @property
    def location(self) -> str:
        return f"{self.path}, line {self.line:,}"

    def error(self, problem: str) -> BadRow:
        return _bad_row(self.path, InvalidRecord(self.line, problem))

    def _get_column(self, name: str) -> Any:
        if self.columns.get(name, name) not in self.values:
            alone = not is_plain_text(self.path) and is_json(self.path)
            kind = BadRow if alone else UserError  # a header is the same for every row: nothing to skip
            raise kind(
                f"{self.location if alone else self.path} {missing_column_message(name, self.columns, list(self.values))}"
            )
        return self.get(name)


def read_rows(path: Path, columns: Mapping[str, str] | None = None, is_hex: bool = False) -> Iterator[ExampleRow | BadRow]:
    """Every row that is not blank, or what is wrong with it.

    A header names the columns, unless `columns` gives numbers ("0" is the first) for names; an empty name hides a column.
    Quotes mean nothing in .tsv. Of a .txt every line is a `text`, blank ones too: answers then stand beside their lines.
    """
    columns = columns or {}
    if is_plain_text(path):
        yield from _read_lines(path, is_hex)
        return
    named = [name for name in columns.values() if name]
    numbered = bool(named) and all(name.isdigit() for name in named)
    for record in read_records(LineReader(path), numbered):
        if isinstance(record, InvalidRecord):
            yield _bad_row(path, record)
        else:
            yield ExampleRow(record.values, path, record.line, columns, is_hex)


def read_examples(
    path: Path, parse_row: Callable[[ExampleRow], E], columns: Mapping[str, str], is_hex: bool = False
) -> Iterator[E | BadRow]:
    """What is made of every row, or what is wrong with it."""
    for row in read_rows(path, columns, is_hex):
        found: E | BadRow
        try:
            found = row if isinstance(row, BadRow) else parse_row(row)
        except BadRow as wrong:
            found = wrong
        yield found


def missing_label_error(source: str, line: int, name: str, columns: Mapping[str, str]) -> UserError:
    """What to say where a label is needed and an example has none: its column is not there, or its place is empty."""
    good = (row for row in (read_rows(Path(source), columns) if source else ()) if isinstance(row, ExampleRow))
    there = list(first.values) if (first := next(good, None)) else []
    if source and columns.get(name, name) not in there:
        return UserError(f"{source} {missing_column_message(name, columns, there)}")
    place = f"{source}, line {line:,}" if source else "an example"
    return UserError(f"{place} has no {name}; training and judging need one for every example")


def missing_column_message(name: str, columns: Mapping[str, str], available: list[str]) -> str:
    """What to say of a column that is not there: those that are, and how to name the right one."""
    return tables.missing_column_message(
        columns.get(name, name), available, f"columns.{name}, or in finetune data.columns.{name}"
    )


def is_plain_text(path: Path) -> bool:
    """It is plain text, a text a line."""
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED_SUFFIXES else path).suffix.lower() in (".txt", ".text")


def _read_lines(path: Path, is_hex: bool) -> Iterator[ExampleRow | BadRow]:
    for line, text in LineReader(path):
        try:
            text.encode()
        except UnicodeEncodeError:
            yield _bad_row(path, InvalidRecord(line, "it is not UTF-8"))
        else:
            yield ExampleRow({"text": text}, path, line, {}, is_hex)


def _bad_row(path: Path, fault: InvalidRecord) -> BadRow:
    return BadRow(f"{path}, line {fault.line:,}: {fault.message}; mend the row, or leave such rows out by {SKIP_HINT}")


class ExampleReader(Generic[E]):
    """What is good of examples and faults; `skipped` counts the faults, `faults` holds the first few in words."""

    def __init__(self, path: Path, rows: Iterator[E | BadRow], skip_bad: bool = False) -> None:
        self.path, self.num_skipped, self.errors = path, 0, list[str]()
        self._rows, self._skip_bad, self._count = rows, skip_bad, 0

    def __iter__(self) -> "ExampleReader[E]":
        return self

    def iter_with_errors(self) -> Iterator[E | BadRow]:
        """All of it, faults in their places; only a file that holds nothing is refused."""
        none = True
        for one in self._rows:
            none = False
            yield one
        if none:
            raise UserError(f"{self.path} holds nothing that can be used")

    def __next__(self) -> E:
        for example in self._rows:
            if not isinstance(example, BadRow):
                self._count += 1
                return example
            if not self._skip_bad:
                raise example
            self.num_skipped, self.errors = self.num_skipped + 1, [*self.errors, str(example)][:5]
        if not self._count:
            raise UserError(f"{self.path} holds nothing that can be used" + (f": {self.errors[0]}" if self.errors else ""))
        raise StopIteration
