"""Records of .tsv, .csv and .jsonl files, packed or not, each with the line it stands on."""

import codecs
import csv
import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadInput
from .files import unpacked

KNOWN = ".tsv, .csv or .jsonl, alone or packed (.gz .xz .bz2 .zst)"
_PACKED, _ENDINGS = {".gz", ".xz", ".bz2", ".zst"}, {".tsv": "\t", ".csv": ",", ".jsonl": "", ".ndjson": ""}
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what Python makes of bytes that are not, so that a line can be named


class Record(NamedTuple):
    line: int
    values: dict[str, Any]  # by the file's own names


class Fault(NamedTuple):
    """What is wrong with one row; the others may be fine."""

    line: int
    what: str


class Lines:
    """Lines by number, from 1, without their ends; bytes that are not UTF-8 are left as lone surrogates."""

    def __init__(self, path: Path) -> None:
        self.path, self.read = path, 0  # bytes of the file, as it lies on disk, read so far

    def __iter__(self) -> Iterator[tuple[int, str]]:
        rest, line = b"", 0
        for data, read in unpacked(self.path):
            self.read = read
            *whole, rest = (rest + data).split(b"\n")
            for number, text in enumerate(whole, line + 1):
                yield number, _decoded(text, number)
            line += len(whole)
        if rest:
            yield line + 1, _decoded(rest, line + 1)


def records(lines: Lines, numbered: bool = False) -> Iterator[Record | Fault]:
    """Every row that is not blank, or what is wrong with it. Quotes mean nothing in .tsv.

    A header names the columns, unless they are `numbered`: then "0" is the first, and the first row is a row.
    """
    path = lines.path
    if is_json(path):
        yield from _objects(lines)
        return
    found = _quoted(lines) if _separator(path) == "," else _tabbed(lines)
    first = next(found, None)
    if first is None:
        raise BadInput(f"{path} is empty; it needs a header that names its columns, such as text and label")
    if isinstance(first, Fault):
        raise BadInput(f"{path}, line {first.line:,}: {first.what}; its first line must name the columns")
    if numbered:
        names, found = [str(number) for number in range(len(first[1]))], chain([first], found)
    else:
        names = [name.strip() for name in first[1]]
    for row in found:
        yield row if isinstance(row, Fault) else _record(row, names)


def is_json(path: Path) -> bool:
    return not _separator(path)


def missing(wanted: str, there: list[str], key: str) -> str:
    """What to say of a column that is not there: those that are, and the setting that names the right one."""
    near = get_close_matches(wanted, there, n=1, cutoff=0.5) or ["..."]
    return f"has no column {wanted!r}, only: {', '.join(there)}; name the right one: {key}={near[0]}"


def shown(value: Any) -> str:
    """A value as JSON, cut where it is long: for messages."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 40 else f"{text[:36]}..."


def _separator(path: Path) -> str:
    name = Path(path.stem) if path.suffix.lower() in _PACKED else path
    if (ending := name.suffix.lower()) not in _ENDINGS:
        raise BadInput(f"{path} is not a table that can be read; give {KNOWN}")
    return _ENDINGS[ending]


def _record(row: tuple[int, list[str]], names: list[str]) -> Record | Fault:
    line, values = row
    if len(values) != len(names):
        return Fault(line, f"{len(values)} fields, where there should be {len(names)} ({', '.join(names)})")
    return Record(line, dict(zip(names, values, strict=True)))


def _tabbed(lines: Lines) -> Iterator[tuple[int, list[str]] | Fault]:
    for line, text in lines:
        if _NOT_UTF8.search(text):
            yield Fault(line, "it is not UTF-8")
        elif text:
            yield line, text.split("\t")


def _quoted(lines: Lines) -> Iterator[tuple[int, list[str]] | Fault]:
    csv.field_size_limit(2**31 - 1)  # of the whole process: the usual 131,072 characters are less than a long document
    reader = csv.reader((f"{text}\n" for _, text in lines), strict=True)
    while True:
        line = reader.line_num + 1  # where the row begins: a quoted text may go over many
        try:
            values = next(reader, None)
        except csv.Error as error:
            yield Fault(line, f"{error}; is a quote left open, or not doubled?")
            continue
        if values is None:
            return
        if any(map(_NOT_UTF8.search, values)):
            yield Fault(line, "it is not UTF-8")
        elif values:
            yield line, values


def _objects(lines: Lines) -> Iterator[Record | Fault]:
    for line, text in lines:
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield Fault(line, f"it is not JSON: {error}")
            continue
        if _NOT_UTF8.search(text):
            yield Fault(line, "it is not UTF-8")
        elif not isinstance(value, dict):
            yield Fault(line, f'it is {shown(value)}, not an object such as {{"text": ..., "label": ...}}')
        else:
            yield Record(line, value)


def _decoded(data: bytes, line: int) -> str:
    data = data.removeprefix(codecs.BOM_UTF8) if line == 1 else data
    return data.removesuffix(b"\r").decode("utf-8", "surrogateescape")
