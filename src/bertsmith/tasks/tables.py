"""Rows of .tsv, .csv and .jsonl files, packed or not, each with the line it stands on."""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ..errors import BadInput
from ..text.files import unpacked

E = TypeVar("E")

KNOWN = ".tsv, .csv or .jsonl, alone or packed (.gz .xz .bz2 .zst)"
_PACKED, _ENDINGS = {".gz", ".xz", ".bz2", ".zst"}, {".tsv": "\t", ".csv": ",", ".jsonl": "", ".ndjson": ""}
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what Python makes of bytes that are not, so that a line can be named


class BadRow(BadInput):
    """One row cannot be used; the others may be fine, and `data.skip_bad=true` goes on without it."""


@dataclass(frozen=True)
class Row:
    """What a row holds, by the file's own names; `need` and `get` ask by the task's names."""

    values: dict[str, Any]
    path: Path
    line: int
    columns: Mapping[str, str] = field(default_factory=dict)  # the task's name -> the file's

    def need(self, name: str) -> Any:
        """The value, or an error that names the columns there are; null is a bad row."""
        if self.columns.get(name, name) not in self.values:
            fault = BadRow if is_json(self.path) else BadInput  # a header is the same for every row: nothing to skip
            raise fault(f"{self.place if is_json(self.path) else self.path} {missing(name, self.columns, list(self.values))}")
        if (value := self.get(name)) is None:
            raise self.bad(f"{name} is null")
        return value

    def get(self, name: str) -> Any:
        """The value, or None where the file has no such column."""
        return self.values.get(self.columns.get(name, name))

    def text(self, name: str) -> str:
        if not isinstance(value := self.need(name), str):
            raise self.bad(f"{name} is {_shown(value)}, not a text")
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
            raise self.bad(f"{name} is {_shown(value)}, not a number")
        return number

    @property
    def place(self) -> str:
        return f"{self.path}, line {self.line:,}"

    def bad(self, fault: str) -> BadRow:
        return _bad(self.path, self.line, fault)


def rows(path: Path, columns: Mapping[str, str] | None = None) -> Iterator[Row | BadRow]:
    """Every row that is not blank, or what is wrong with it.

    A header names the columns, unless `columns` gives numbers ("0" is the first) for names. Quotes mean nothing in .tsv.
    """
    columns = columns or {}
    if is_json(path):
        yield from _objects(path, columns)
        return
    records = _quoted(path) if _separator(path) == "," else _tabbed(path)
    first = next(records, None)
    if first is None:
        raise BadInput(f"{path} is empty; it needs a header that names its columns, such as text and label")
    if isinstance(first, BadRow):
        raise first
    if columns and all(name.isdigit() for name in columns.values()):
        names, records = [str(number) for number in range(len(first[1]))], chain([first], records)
    else:
        names = [name.strip() for name in first[1]]
    for record in records:
        yield record if isinstance(record, BadRow) else _row(path, record, names, columns)


def examples(path: Path, made: Callable[[Row], E], columns: Mapping[str, str]) -> Iterator[E | BadRow]:
    """What is made of every row, or what is wrong with it."""
    for row in rows(path, columns):
        found: E | BadRow
        try:
            found = row if isinstance(row, BadRow) else made(row)
        except BadRow as fault:
            found = fault
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
    wanted = columns.get(name, name)
    near = get_close_matches(wanted, there, n=1, cutoff=0.5) or ["..."]
    return f"has no column {wanted!r}, only: {', '.join(there)}; name the right one: data.columns.{name}={near[0]}"


def is_json(path: Path) -> bool:
    return not _separator(path)


def _separator(path: Path) -> str:
    name = Path(path.stem) if path.suffix.lower() in _PACKED else path
    if (ending := name.suffix.lower()) not in _ENDINGS:
        raise BadInput(f"{path} is not a table that can be read; give {KNOWN}")
    return _ENDINGS[ending]


def _row(path: Path, record: tuple[int, list[str]], names: list[str], columns: Mapping[str, str]) -> Row | BadRow:
    line, values = record
    if len(values) != len(names):
        return _bad(path, line, f"{len(values)} fields, where there should be {len(names)} ({', '.join(names)})")
    return Row(dict(zip(names, values, strict=True)), path, line, columns)


def _tabbed(path: Path) -> Iterator[tuple[int, list[str]] | BadRow]:
    for line, text in _lines(path):
        if _NOT_UTF8.search(text):
            yield _bad(path, line, "it is not UTF-8")
        elif text:
            yield line, text.split("\t")


def _quoted(path: Path) -> Iterator[tuple[int, list[str]] | BadRow]:
    csv.field_size_limit(2**31 - 1)  # of the whole process: the usual 131,072 characters are less than a long document
    reader = csv.reader((f"{text}\n" for _, text in _lines(path)), strict=True)
    while True:
        line = reader.line_num + 1  # where the row begins: a quoted text may go over many
        try:
            values = next(reader, None)
        except csv.Error as error:
            yield _bad(path, line, f"{error}; is a quote left open, or not doubled?")
            continue
        if values is None:
            return
        if any(map(_NOT_UTF8.search, values)):
            yield _bad(path, line, "it is not UTF-8")
        elif values:
            yield line, values


def _objects(path: Path, columns: Mapping[str, str]) -> Iterator[Row | BadRow]:
    for line, text in _lines(path):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield _bad(path, line, f"it is not JSON: {error}")
            continue
        if _NOT_UTF8.search(text):
            yield _bad(path, line, "it is not UTF-8")
        elif not isinstance(value, dict):
            yield _bad(path, line, f'it is {_shown(value)}, not an object such as {{"text": ..., "label": ...}}')
        else:
            yield Row(value, path, line, columns)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines by number, from 1, without their ends; bytes that are not UTF-8 are left as lone surrogates."""
    rest, line = b"", 0
    for data, _ in unpacked(path):
        *whole, rest = (rest + data).split(b"\n")
        for number, text in enumerate(whole, line + 1):
            yield number, _decoded(text, number)
        line += len(whole)
    if rest:
        yield line + 1, _decoded(rest, line + 1)


def _decoded(data: bytes, line: int) -> str:
    data = data.removeprefix(codecs.BOM_UTF8) if line == 1 else data
    return data.removesuffix(b"\r").decode("utf-8", "surrogateescape")


def _bad(path: Path, line: int, fault: str) -> BadRow:
    return BadRow(f"{path}, line {line:,}: {fault}; mend the row, or leave such rows out by data.skip_bad=true")


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) < 40 else f"{shown[:36]}..."
