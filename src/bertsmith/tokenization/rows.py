"""Rows that a Python program has in memory: data frames, columns, lists or generators of dictionaries; written as .jsonl."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from .parquet import to_json_value
from .tables import ROWS_SUFFIX, preview_json


def is_data_frame(value: Any) -> bool:
    """Whether a value has named columns, like the data frames of pandas and polars; neither is imported."""
    return not isinstance(value, Mapping) and hasattr(value, "columns") and hasattr(value, "__getitem__")


def is_rows(value: Any) -> bool:
    """Whether a value holds rows, and is not the path of a file that does."""
    return is_data_frame(value) or (isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike))


def write_rows(rows: Any, folder: Path, name: str) -> Path:
    """The rows as a file NAME.rows.jsonl, a line each; messages call its lines `NAME, row 3`. Null values become null."""
    path, number = folder / f"{name}{ROWS_SUFFIX}", 0
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(_iter_rows(rows, name), 1):
            if not isinstance(row, Mapping):
                raise UserError(f'{name}, row {number:,} is {preview_json(str(row))}, not a dictionary such as '
                               '{"text": ..., "label": ...}')  # fmt: skip
            file.write(json.dumps({str(key): to_json_value(value) for key, value in row.items()}) + "\n")
    if not number:
        raise UserError(f"{name} has no rows")
    return path


def _iter_rows(rows: Any, name: str) -> Iterator[Any]:
    if not is_data_frame(rows) and not isinstance(rows, Mapping):
        yield from rows
        return
    columns = list(rows if isinstance(rows, Mapping) else rows.columns)
    if len(set(columns)) < len(columns):
        raise UserError(f"{name} has two columns of one name: {', '.join(map(str, columns))}; rename one of them")
    values = [rows[column] for column in columns]
    if not all(is_rows(column) for column in values) or len({len(column) for column in values}) > 1:
        raise UserError(f"{name} is a dictionary, but not of columns of one length; give a list of rows or a data frame")
    for row in zip(*values, strict=True):
        yield dict(zip(columns, row, strict=True))
