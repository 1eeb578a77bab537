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

from ..errors import UserError
from .files import read_decompressed

SUPPORTED_FORMATS = ".tsv, .csv or .jsonl, alone or packed (.gz .xz .bz2 .zst)"
_COMPRESSED_SUFFIXES, _SEPARATORS = {".gz", ".xz", ".bz2", ".zst"}, {".tsv": "\t", ".csv": ",", ".jsonl": "", ".ndjson": ""}
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what Python makes of bytes that are not, so that a line can be named


class TableRecord(NamedTuple):
    line: int
    values: dict[str, Any]  # by the file's own names


class InvalidRecord(NamedTuple):
    """What is wrong with one row; the others may be fine."""

    line: int
    message: str


class LineReader:
    """Lines by number, from 1, without their ends; bytes that are not UTF-8 are left as lone surrogates."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes_read = path, 0  # bytes of the file, as it lies on disk, read so far

    def __iter__(self) -> Iterator[tuple[int, str]]:
        rest, line = b"", 0
        for data, read in read_decompressed(self.path):
            self.bytes_read = read
            *whole, rest = (rest + data).split(b"\n")
            for number, text in enumerate(whole, line + 1):
                yield number, _decode_line(text, number)
            line += len(whole)
        if rest:
            yield line + 1, _decode_line(rest, line + 1)


def read_records(lines: LineReader, number_columns: bool = False) -> Iterator[TableRecord | InvalidRecord]:
    """Every row that is not blank, or what is wrong with it. Quotes mean nothing in .tsv.

    A header names the columns, unless they are `numbered`: then "0" is the first, and the first row is a row.
    """
    path = lines.path
    if is_json(path):
        yield from _read_jsonl(lines)
        return
    found = _read_csv(lines) if _separator(path) == "," else _read_tsv(lines)
    first = next(found, None)
    if first is None:
        raise UserError(f"{path} is empty; it needs a header that names its columns, such as text and label")
    if isinstance(first, InvalidRecord):
        raise UserError(f"{path}, line {first.line:,}: {first.message}; its first line must name the columns")
    if number_columns:
        names, found = [str(number) for number in range(len(first[1]))], chain([first], found)
    else:
        names = [name.strip() for name in first[1]]
    for row in found:
        yield row if isinstance(row, InvalidRecord) else _make_record(row, names)


def is_json(path: Path) -> bool:
    return not _separator(path)


def missing_column_message(column: str, columns: list[str], setting: str) -> str:
    """What to say of a column that is not there: those that are, and the setting that names the right one."""
    near = get_close_matches(column, columns, n=1, cutoff=0.5) or ["..."]
    return f"has no column {column!r}, only: {', '.join(columns)}; name the right one: {setting}={near[0]}"


def preview_json(value: Any) -> str:
    """A value as JSON, cut where it is long: for messages."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 40 else f"{text[:36]}..."


def _separator(path: Path) -> str:
    name = Path(path.stem) if path.suffix.lower() in _COMPRESSED_SUFFIXES else path
    if (ending := name.suffix.lower()) not in _SEPARATORS:
        raise UserError(f"{path} is not a table that can be read; give {SUPPORTED_FORMATS}")
    return _SEPARATORS[ending]


def _make_record(row: tuple[int, list[str]], names: list[str]) -> TableRecord | InvalidRecord:
    line, values = row
    if len(values) != len(names):
        return InvalidRecord(line, f"{len(values)} fields, where there should be {len(names)} ({', '.join(names)})")
    return TableRecord(line, dict(zip(names, values, strict=True)))


def _read_tsv(lines: LineReader) -> Iterator[tuple[int, list[str]] | InvalidRecord]:
    for line, text in lines:
        if _NOT_UTF8.search(text):
            yield InvalidRecord(line, "it is not UTF-8")
        elif text:
            yield line, text.split("\t")


def _read_csv(lines: LineReader) -> Iterator[tuple[int, list[str]] | InvalidRecord]:
    csv.field_size_limit(2**31 - 1)  # of the whole process: the usual 131,072 characters are less than a long document
    reader = csv.reader((f"{text}\n" for _, text in lines), strict=True)
    while True:
        line = reader.line_num + 1  # where the row begins: a quoted text may go over many
        try:
            values = next(reader, None)
        except csv.Error as error:
            yield InvalidRecord(line, f"{error}; is a quote left open, or not doubled?")
            continue
        if values is None:
            return
        if any(map(_NOT_UTF8.search, values)):
            yield InvalidRecord(line, "it is not UTF-8")
        elif values:
            yield line, values


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
