"""Rows of tables as a task asks for them: by its own names for the columns, with bad ones named by file and line."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import BadInput
from ..tokenization import tables
from ..tokenization.hex_bytes import fault
from ..tokenization.tables import Fault, Lines, is_json, records, shown

E = TypeVar("E")


SKIP = "skip_bad=true (data.skip_bad=true in finetune)"
PACKED = {".gz", ".xz", ".bz2", ".zst"}


class BadRow(BadInput):
    """One row cannot be used; the others may be fine, and `skip_bad` goes on without it."""


@dataclass(frozen=True)
class Row:
    """What a row holds, by the file's own names; `need` and `get` ask by the task's names."""

    values: dict[str, Any]
    path: Path
    line: int
    columns: Mapping[str, str] = field(default_factory=dict)  # the task's name -> the file's
    hex: bool = False  # its texts are bytes written in hex

    def need(self, name: str) -> Any:
        """The value, or an error that names the columns there are; null is a bad row."""
        if (value := self._there(name)) is None:
            raise self.bad(f"{name} is null")
        return value

    def get(self, name: str) -> Any:
        """The value, or None where the file has no such column."""
        return self.values.get(column) if (column := self.columns.get(name, name)) else None

    def text(self, name: str) -> str:
        if not isinstance(value := self.need(name), str):
            raise self.bad(f"{name} is {shown(value)}, not a text")
        if self.hex and (wrong := fault(value)):
            raise self.bad(f"{name} is not hex: {wrong}")
        return value

    def number(self, name: str) -> float | None:
        """None where the column is not there."""
        if (value := self.get(name)) is None:
            return None
        try:
            number = float("" if isinstance(value, bool | list | dict) else value)
        except (ValueError, OverflowError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise self.bad(f"{name} is {shown(value)}, not a number")
        return number

    def cell(self, name: str) -> str:
        """A value of any kind as text, empty where it is null; the column must be there."""
        value = self._there(name)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)

    @property
    def place(self) -> str:
        return f"{self.path}, line {self.line:,}"

    def bad(self, wrong: str) -> BadRow:
        return _bad(self.path, Fault(self.line, wrong))

    def _there(self, name: str) -> Any:
        if self.columns.get(name, name) not in self.values:
            alone = not is_lines(self.path) and is_json(self.path)
            kind = BadRow if alone else BadInput  # a header is the same for every row: nothing to skip
            raise kind(f"{self.place if alone else self.path} {missing(name, self.columns, list(self.values))}")
        return self.get(name)


def rows(path: Path, columns: Mapping[str, str] | None = None, hex: bool = False) -> Iterator[Row | BadRow]:
    """Every row that is not blank, or what is wrong with it.

    A header names the columns, unless `columns` gives numbers ("0" is the first) for names; an empty name hides a column.
    Quotes mean nothing in .tsv. Of a .txt every line is a `text`, blank ones too: answers then stand beside their lines.
    """
    columns = columns or {}
    if is_lines(path):
        yield from _texts(path, hex)
        return
    named = [name for name in columns.values() if name]
    numbered = bool(named) and all(name.isdigit() for name in named)
    for record in records(Lines(path), numbered):
        if isinstance(record, Fault):
            yield _bad(path, record)
        else:
            yield Row(record.values, path, record.line, columns, hex)


def examples(path: Path, made: Callable[[Row], E], columns: Mapping[str, str], hex: bool = False) -> Iterator[E | BadRow]:
    """What is made of every row, or what is wrong with it."""
    for row in rows(path, columns, hex):
        found: E | BadRow
        try:
            found = row if isinstance(row, BadRow) else made(row)
        except BadRow as wrong:
            found = wrong
        yield found


def unlabelled(source: str, line: int, name: str, columns: Mapping[str, str]) -> BadInput:
    """What to say where a label is needed and an example has none: its column is not there, or its place is empty."""
    good = (row for row in (rows(Path(source), columns) if source else ()) if isinstance(row, Row))
    there = list(first.values) if (first := next(good, None)) else []
    if source and columns.get(name, name) not in there:
        return BadInput(f"{source} {missing(name, columns, there)}")
    place = f"{source}, line {line:,}" if source else "an example"
    return BadInput(f"{place} has no {name}; training and judging need one for every example")


def missing(name: str, columns: Mapping[str, str], there: list[str]) -> str:
    """What to say of a column that is not there: those that are, and how to name the right one."""
    return tables.missing(columns.get(name, name), there, f"columns.{name}, or in finetune data.columns.{name}")


def is_lines(path: Path) -> bool:
    """It is plain text, a text a line."""
    return (Path(path.stem) if path.suffix.lower() in PACKED else path).suffix.lower() in (".txt", ".text")


def _texts(path: Path, hex: bool) -> Iterator[Row | BadRow]:
    for line, text in Lines(path):
        try:
            text.encode()
        except UnicodeEncodeError:
            yield _bad(path, Fault(line, "it is not UTF-8"))
        else:
            yield Row({"text": text}, path, line, {}, hex)


def _bad(path: Path, wrong: Fault) -> BadRow:
    return BadRow(f"{path}, line {wrong.line:,}: {wrong.what}; mend the row, or leave such rows out by {SKIP}")


class Kept(Generic[E]):
    """What is good of examples and faults; `skipped` counts the faults, `faults` holds the first few in words."""

    def __init__(self, path: Path, found: Iterator[E | BadRow], skip_bad: bool = False) -> None:
        self.path, self.skipped, self.faults = path, 0, list[str]()
        self._found, self._skip, self._count = found, skip_bad, 0

    def __iter__(self) -> "Kept[E]":
        return self

    def beside(self) -> Iterator[E | BadRow]:
        """All of it, faults in their places; only a file that holds nothing is refused."""
        none = True
        for one in self._found:
            none = False
            yield one
        if none:
            raise BadInput(f"{self.path} holds nothing that can be used")

    def __next__(self) -> E:
        for example in self._found:
            if not isinstance(example, BadRow):
                self._count += 1
                return example
            if not self._skip:
                raise example
            self.skipped, self.faults = self.skipped + 1, [*self.faults, str(example)][:5]
        if not self._count:
            raise BadInput(f"{self.path} holds nothing that can be used" + (f": {self.faults[0]}" if self.faults else ""))
        raise StopIteration
