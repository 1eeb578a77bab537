"""Files that vectors are judged by: pairs of words with the likeness people found, and analogies in sections."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import BadInput
from ..metrics.scores import pearson, spearman, unit_rows
from ..tokenization.tables import Lines
from .keyed_vectors import Vectors

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


MOST = 300_000  # rows an analogy is answered from, as gensim has it


class Likeness(NamedTuple):
    """Correlations over the pairs whose words both have a vector, and the share of pairs that is."""

    spearman: float
    pearson: float
    pairs: int
    coverage: float


class Section(NamedTuple):
    """Of a part of the questions: those asked, those whose four words all have a vector, those answered right."""

    name: str
    asked: int
    known: int
    right: int

    @property
    def accuracy(self) -> float:
        """Of the known ones; nan where there are none."""
        return self.right / self.known if self.known else float("nan")


class Spelling:
    """Which row a word of a question is: as written, or, with `fold`, whatever its case, the earliest row of such.

    Folded, rows that differ by case alone are one answer. Rows of zeros are none.
    """

    def __init__(self, vectors: Vectors, fold: bool = True, limit: int | None = None) -> None:
        self.vectors, self.fold = vectors, fold
        self.rows = dict[str, int]()
        for row, word in enumerate(vectors.words[:limit]):
            if vectors.said[row]:
                self.rows.setdefault(self.form(word), row)

    def form(self, word: str) -> str:
        return word.upper() if self.fold else word

    def word(self, word: str) -> str | None:
        """The word the vectors have for it; None if they have none."""
        row = self.rows.get(self.form(word))
        return self.vectors.words[row] if row is not None else word if self.vectors.knows(word) else None


def likeness(vectors: Vectors, path: Path, fold: bool = True) -> Likeness:
    """Spearman's (and Pearson's) correlation of cosines with what people said; pairs with an unknown word are left out."""
    return of_pairs(vectors, pairs(path), str(path), fold)


def of_pairs(vectors: Vectors, asked: list[Pair], source: str, fold: bool = True) -> Likeness:
    spelling = Spelling(vectors, fold)
    found = [(spelling.word(pair.left), spelling.word(pair.right), pair.score) for pair in asked]
    known = [(left, right, score) for left, right, score in found if left is not None and right is not None]
    if len(known) < 2:
        raise BadInput(f"{source}: of {len(asked):,} pairs, {len(known)} have vectors; there is nothing to compare")
    lefts, rights, truths = zip(*known, strict=True)
    cosines = np.einsum("ij,ij->i", vectors.units(lefts), vectors.units(rights))
    return Likeness(float(spearman(cosines, truths)), float(pearson(cosines, truths)), len(known), len(known) / len(asked))


@dataclass(frozen=True)
class Analogies:
    """Every section of a file of questions, and all of them together."""

    sections: list[Section]

    @property
    def total(self) -> Section:
        asked, known, right = (sum(column) for column in list(zip(*self.sections, strict=True))[1:])
        return Section("total", asked, known, right)

    @property
    def coverage(self) -> float:
        return self.total.known / max(1, self.total.asked)


def answered(vectors: Vectors, path: Path, fold: bool = True, most: int = MOST) -> Analogies:
    """Each question's nearest word to b - a + c (3CosAdd) among the `most` first rows, but a, b and c; right or not.

    Questions with a word that has no such row are not counted. `fold` takes no notice of case, neither in the questions
    nor among the answers.
    """
    asked = analogies(path)
    spelling = Spelling(vectors, fold, most)
    rows = np.array([[spelling.rows.get(spelling.form(word), -1) for word in one.words] for one in asked], np.int64)
    known = np.asarray((rows >= 0).all(1))
    right = np.zeros(len(asked), bool)
    if known.any():
        right[known] = _right(spelling, rows[known], most)
    return Analogies(_sections(asked, known, right))


def _right(spelling: Spelling, rows: np.ndarray, most: int) -> np.ndarray:
    vectors = spelling.vectors
    a, b, c, expected = rows.T
    unit = vectors.unit
    goals = unit_rows(unit[b] - unit[a] + unit[c])
    same = np.array([spelling.rows.get(spelling.form(word), row) for row, word in enumerate(vectors.words[:most])], np.int64)
    found = vectors.first(goals, _alike(same, rows[:, :3]), most)
    return same[found] == expected


def _alike(same: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(questions, some): all rows that are written like one of a question's three words, -1 where there are fewer."""
    others = np.flatnonzero(same != np.arange(len(same)))
    if not len(others):
        return rows
    order = others[np.argsort(same[others], kind="stable")]
    heads = same[order]
    begin, end = np.searchsorted(heads, rows), np.searchsorted(heads, rows, "right")
    widest = int((end - begin).max())
    where = begin[..., None] + np.arange(widest)
    more = np.where(where < end[..., None], order[np.minimum(where, len(order) - 1)], -1)
    return np.concatenate([rows, more.reshape(len(rows), -1)], 1)


def _sections(asked: list[Question], known: np.ndarray, right: np.ndarray) -> list[Section]:
    names = np.array([one.section for one in asked])
    order = dict.fromkeys(names.tolist())
    return [Section(n, int((s := names == n).sum()), int(known[s].sum()), int(right[s].sum())) for n in order]
