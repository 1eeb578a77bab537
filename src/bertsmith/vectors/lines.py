"""Text files of vectors: a word and its numbers a line, below word2vec's header or, as GloVe has them, without one."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from ..errors import BadInput
from ..text.files import unpacked
from .header import LONGEST, WIDEST, decoded, header_of, shown
from .vectors import Matrix, Vectors

BLOCK = 4_096  # rows parsed, or written, at once


def read(path: Path) -> tuple[list[str], Matrix]:
    words, blocks, header, width = list[str](), list[Matrix](), None, 0
    for number, lines in _numbered(path):
        if number == 1:
            first, header = lines[0], header_of(lines[0])
            lines, number = (lines[1:], 2) if header else (lines, 1)
            width = header.width if header else len(lines[0].split(b" ")) - 1
            if not 1 <= width <= WIDEST:
                raise BadInput(f"{path}, line 1: {shown(first)} makes vectors of {width:,} "
                               "numbers; a line is a word and its numbers, parted by spaces")  # fmt: skip
        for at in range(0, len(lines), BLOCK):
            some, block = _parsed(path, lines[at : at + BLOCK], number + at, width)
            words += some
            blocks.append(block)
    if not words:
        raise BadInput(f"{path} holds no vectors")
    if header and header.words != len(words):
        raise BadInput(f"{path} is truncated, or its first line is wrong: that speaks of {header.words:,} words, and there are "
                       f"{len(words):,}")  # fmt: skip
    return words, np.concatenate(blocks)


def _numbered(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Whole lines in pieces of a megabyte or so, with the number of the first; empty ones at the end are left out."""
    rest, number = b"", 1
    for data, _ in chain(unpacked(path), [(b"", 0)]):
        *lines, rest = (rest + data).split(b"\n") if data else ([rest, b""] if rest.strip() else [b""])
        if lines:
            yield number, [line.rstrip(b"\r ") for line in lines]
            number += len(lines)
        if len(rest) > LONGEST + 32 * WIDEST:
            raise BadInput(f"{path}, line {number:,} has no end; it is not a text file of vectors")


def _parsed(path: Path, lines: list[bytes], number: int, width: int) -> tuple[list[str], Matrix]:
    """Many lines at once; when something is wrong with them, one by one, to name the line."""
    pairs = [_parted(line, width) for line in lines]
    numbers = np.fromstring(b" ".join(rest for _, rest in pairs), np.float32, sep=" ") if _clean(pairs, width) else None
    if numbers is None or len(numbers) != width * len(lines):
        for at, line in enumerate(lines):
            _check(path, line, number + at, width)
        raise BadInput(f"{path}, lines {number:,} to {number + len(lines) - 1:,} are not words with {width} numbers each")
    return [decoded(path, word, f"line {number + at:,}") for at, (word, _) in enumerate(pairs)], numbers.reshape(-1, width)


def _parted(line: bytes, width: int) -> tuple[bytes, bytes]:
    """A word and its numbers; the word may hold spaces, as a few of GloVe's do."""
    if line.count(b" ") == width:
        word, _, rest = line.partition(b" ")
        return word, rest
    word, *numbers = line.rsplit(b" ", width)
    return word, b" ".join(numbers)


_DIGITS = b"0123456789+-.eE "


def _clean(pairs: list[tuple[bytes, bytes]], width: int) -> bool:
    return all(word and rest.count(b" ") == width - 1 and not rest.translate(None, _DIGITS) for word, rest in pairs)


def _check(path: Path, line: bytes, number: int, width: int) -> None:
    word, rest = _parted(line, width)
    parts = rest.split(b" ") if rest else []
    if not word or len(parts) != width:
        raise BadInput(f"{path}, line {number:,}: {shown(line)} is not a word with {width} numbers (it has {len(parts)})")
    for part in parts:
        try:
            float(part)
        except ValueError:
            raise BadInput(f"{path}, line {number:,}: {shown(part)} is no number, in the vector of {shown(word)}") from None
        if part.translate(None, _DIGITS):  # nan, inf, 1_000
            raise BadInput(f"{path}, line {number:,}: {shown(part)} is no finite number, in the vector of {shown(word)}")


def rows(vectors: Vectors) -> Iterator[bytes]:
    for at in range(0, len(vectors), BLOCK):
        numbers = (" ".join(map(str, row)) for row in vectors.matrix[at : at + BLOCK])
        named = zip(vectors.words[at : at + BLOCK], numbers, strict=True)
        yield "".join([f"{word} {row}\n" for word, row in named]).encode()
