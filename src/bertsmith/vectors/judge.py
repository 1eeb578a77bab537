"""How well vectors agree with people: likeness of pairs (WordSim-353, SimLex-999), and analogies (Google's)."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import BadInput
from ..metrics import pearson, spearman, unit_rows
from .questions import Pair, Question, analogies, pairs
from .vectors import Vectors

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
