"""JSON and TOML with limits on bytes, depth and the digits of integers."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import open_regular, read_text

MAX_JSON_BYTES = 32 << 20  # the values of a file may take 20 times as much memory
MAX_TOML_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20  # of JSON lines
MAX_DEPTH = 100  # ours are less than 10 deep
MAX_DIGITS = 40  # of an integer; transformers writes 10**30 for "no limit"


def parse_json(data: bytes, source: str) -> Any:
    """The value of JSON in UTF-8; `source` names it in errors."""
    try:
        value = json.loads(data.decode("utf-8"), parse_int=_parse_int)
        check_depth(value)
    except RecursionError:
        raise UserError(f"{source} is damaged: it is nested too deeply") from None
    except ValueError as error:  # also UnicodeDecodeError and JSONDecodeError
        raise UserError(f"{source} is damaged: {error}") from None
    return value


def as_object(value: Any, source: Path | str) -> dict[str, Any]:
    """A parsed value, if it is a dictionary; `source` names it in errors."""
    if not isinstance(value, dict):
        raise UserError(f"{source} is damaged: it is not a JSON object, but {_describe(value)}")
    return value


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each line that ends with a line break; the last one may be cut off by a kill."""
    with open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE_BYTES:
                    raise UserError(f"{path}, line {number:,} is longer than {MAX_LINE_BYTES:,} bytes; the file is damaged")
                return
            yield number, parse_json(line, f"{path}, line {number:,}")


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file; what is wrong with its text is a ValueError."""
    return parse_toml(read_text(path, MAX_TOML_BYTES))


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; a ValueError, such as tomllib.TOMLDecodeError, for anything wrong."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(table)
    return table


def check_depth(value: Any) -> None:
    """Raise ValueError if lists and dictionaries are nested so deeply that functions that recur into them would fail."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        if (depth := depth + 1) > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has an integer of {len(digits):,} digits")
    return int(digits)


def _describe(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
