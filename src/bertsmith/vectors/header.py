"""What the files of vectors have in common: the header, what is too large to be true, and words in UTF-8."""

from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput

WIDEST, LONGEST = 65_536, 4_096  # numbers a vector, bytes a word: more is a damaged file


class Header(NamedTuple):
    words: int
    width: int


def header_of(line: bytes) -> Header | None:
    """Two whole numbers, if the line is that."""
    parts = line.split()
    return Header(*map(int, parts)) if len(parts) == 2 and all(p.isdigit() and len(p) < 19 for p in parts) else None


def decoded(path: Path, word: bytes, place: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path}, {place}: {shown(word)} is not UTF-8; leave the word out, or convert the file") from None


def shown(what: object) -> str:
    text = what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)
    return repr(text if len(text) <= 40 else text[:40] + "...")
