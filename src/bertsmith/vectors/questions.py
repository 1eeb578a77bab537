"""Files that vectors are judged by: pairs of words with the likeness people found, and analogies in sections."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput
from ..text.tables import Lines

LEFT, RIGHT = ("word1", "word 1"), ("word2", "word 2")
SCORE = ("similarity", "simlex999", "human (mean)", "score")


class Pair(NamedTuple):
    left: str
    right: str
    score: float


class Question(NamedTuple):
    """words[0] is to words[1] as words[2] is to words[3]."""

    section: str
    words: tuple[str, str, str, str]


def pairs(path: Path) -> list[Pair]:
    """Of a .csv, or of columns parted by tabs (or by spaces): two words and a number.

    They are the first three columns, or those a header names as WordSim-353, SimLex-999 and their kin do (word1, word2,
    similarity ...); lines that begin with # are comments.
    """
    found, places = list[Pair](), None
    for number, cells in _cells(path):
        if places is None:
            places, header = _places([cell.strip().lower() for cell in cells])
            if header:
                continue
        if any("".join(cells[place : place + 1]).strip() for place in places):  # one published file ends with a bare number
            found.append(_pair(path, number, cells, places))
    if not found:
        raise BadInput(f"{path} holds no pairs; a line is two words and a number")
    return found


def analogies(path: Path) -> list[Question]:
    """Four words a line, in sections that a line `: name` begins."""
    found, section = list[Question](), None
    for number, line in _whole(path):
        if line.startswith(":"):
            section = line.lstrip(": ")
            continue
        words = line.split()
        if len(words) != 4 or section is None:
            wrong = f"{line[:60]!r} is not four words" if section is not None else "there is no `: name` of a section before it"
            raise BadInput(f"{path}, line {number:,}: {wrong}")
        found.append(Question(section, (words[0], words[1], words[2], words[3])))
    if not found:
        raise BadInput(f"{path} holds no questions; a line is four words, below a line `: name`")
    return found


def _whole(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    for number, text in Lines(path):
        line = text.removeprefix("\ufeff").strip() if number == 1 else text.strip()
        if line.isascii() or not any("\udc80" <= c <= "\udcff" for c in line):
            if line:
                yield number, line
        else:
            raise BadInput(f"{path}, line {number:,} is not UTF-8")


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in _whole(path):
        if line.startswith("#"):
            continue
        yield number, line.split("\t") if "\t" in line else next(csv.reader([line])) if "," in line else line.split()


def _places(names: list[str]) -> tuple[tuple[int, int, int], bool]:
    """Which columns hold the words and the score, and whether the line is a header."""
    found = [next((names.index(name) for name in known if name in names), None) for known in (LEFT, RIGHT, SCORE)]
    left, right, score = found
    if left is not None and right is not None and score is not None:
        return (left, right, score), True
    return (0, 1, 2), False


def _pair(path: Path, number: int, cells: list[str], places: tuple[int, int, int]) -> Pair:
    try:
        left, right, score = (cells[place].strip() for place in places)
        value = float(score)
    except (IndexError, ValueError):
        value = math.nan
    if not math.isfinite(value) or not left or not right:
        raise BadInput(f"{path}, line {number:,}: {', '.join(cells)[:60]!r} is not two words and a number")
    return Pair(left, right, value)
