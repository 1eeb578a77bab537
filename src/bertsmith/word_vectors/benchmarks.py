"""Files that vectors are judged by: pairs of words with the likeness people found, and analogies in sections."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import UserError
from ..metrics.scores import l2_normalize, pearson, spearman
from ..tokenization.tables import LineReader
from .keyed_vectors import KeyedVectors

LEFT_COLUMNS, RIGHT_COLUMNS = ("word1", "word 1"), ("word2", "word 2")
SCORE_COLUMNS = ("similarity", "simlex999", "human (mean)", "score")


class WordPair(NamedTuple):
    left: str
    right: str
    score: float


class AnalogyQuestion(NamedTuple):
    """words[0] is to words[1] as words[2] is to words[3]."""

    section: str
    words: tuple[str, str, str, str]


def read_word_pairs(path: Path) -> list[WordPair]:
    """Of a .csv, or of columns parted by tabs (or by spaces): two words and a number.

    They are the first three columns, or those a header names as WordSim-353, SimLex-999 and their kin do (word1, word2,
    similarity ...); lines that begin with # are comments.
    """
    found, places = list[WordPair](), None
    for number, cells in _read_cells(path):
        if places is None:
            places, header = _find_columns([cell.strip().lower() for cell in cells])
            if header:
                continue
        if any("".join(cells[place : place + 1]).strip() for place in places):  # one published file ends with a bare number
            found.append(_parse_pair(path, number, cells, places))
    if not found:
        raise UserError(f"{path} holds no pairs; a line is two words and a number")
    return found


def read_analogies(path: Path) -> list[AnalogyQuestion]:
    """Four words a line, in sections that a line `: name` begins."""
    found, section = list[AnalogyQuestion](), None
    for number, line in _read_lines(path):
        if line.startswith(":"):
            section = line.lstrip(": ")
            continue
        words = line.split()
        if len(words) != 4 or section is None:
            wrong = f"{line[:60]!r} is not four words" if section is not None else "there is no `: name` of a section before it"
            raise UserError(f"{path}, line {number:,}: {wrong}")
        found.append(AnalogyQuestion(section, (words[0], words[1], words[2], words[3])))
    if not found:
        raise UserError(f"{path} holds no questions; a line is four words, below a line `: name`")
    return found


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    for number, text in LineReader(path):
        line = text.removeprefix("\ufeff").strip() if number == 1 else text.strip()
        if line.isascii() or not any("\udc80" <= c <= "\udcff" for c in line):
            if line:
                yield number, line
        else:
            raise UserError(f"{path}, line {number:,} is not UTF-8")


def _read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in _read_lines(path):
        if line.startswith("#"):
            continue
        yield number, line.split("\t") if "\t" in line else next(csv.reader([line])) if "," in line else line.split()


def _find_columns(names: list[str]) -> tuple[tuple[int, int, int], bool]:
    """Which columns hold the words and the score, and whether the line is a header."""
    found = [
        next((names.index(name) for name in known if name in names), None)
        for known in (LEFT_COLUMNS, RIGHT_COLUMNS, SCORE_COLUMNS)
    ]
    left, right, score = found
    if left is not None and right is not None and score is not None:
        return (left, right, score), True
    return (0, 1, 2), False


def _parse_pair(path: Path, line_number: int, cells: list[str], columns: tuple[int, int, int]) -> WordPair:
    try:
        left, right, score = (cells[place].strip() for place in columns)
        value = float(score)
    except (IndexError, ValueError):
        value = math.nan
    if not math.isfinite(value) or not left or not right:
        raise UserError(f"{path}, line {line_number:,}: {', '.join(cells)[:60]!r} is not two words and a number")
    return WordPair(left, right, value)


RESTRICT_VOCAB = 300_000  # rows an analogy is answered from, as gensim has it


class SimilarityScores(NamedTuple):
    """Correlations over the pairs whose words both have a vector, and the share of pairs that is."""

    spearman: float
    pearson: float
    pairs: int
    coverage: float


class AnalogySection(NamedTuple):
    """Of a part of the questions: those asked, those whose four words all have a vector, those answered right."""

    name: str
    num_questions: int
    num_covered: int
    num_correct: int

    @property
    def accuracy(self) -> float:
        """Of the known ones; nan where there are none."""
        return self.num_correct / self.num_covered if self.num_covered else float("nan")


class WordLookup:
    """Which row a word of a question is: as written, or, with `fold`, whatever its case, the earliest row of such.

    Folded, rows that differ by case alone are one answer. Rows of zeros are none.
    """

    def __init__(self, vectors: KeyedVectors, case_insensitive: bool = True, limit: int | None = None) -> None:
        self.vectors, self.case_insensitive = vectors, case_insensitive
        self.rows = dict[str, int]()
        for row, word in enumerate(vectors.words[:limit]):
            if vectors.is_nonzero[row]:
                self.rows.setdefault(self.normalize(word), row)

    def normalize(self, word: str) -> str:
        return word.upper() if self.case_insensitive else word

    def resolve(self, word: str) -> str | None:
        """The word the vectors have for it; None if they have none."""
        row = self.rows.get(self.normalize(word))
        return self.vectors.words[row] if row is not None else word if self.vectors.has_vector(word) else None


def evaluate_word_pairs(vectors: KeyedVectors, path: Path, case_insensitive: bool = True) -> SimilarityScores:
    """Spearman's (and Pearson's) correlation of cosines with what people said; pairs with an unknown word are left out."""
    return score_word_pairs(vectors, read_word_pairs(path), str(path), case_insensitive)


def score_word_pairs(
    vectors: KeyedVectors, pairs: list[WordPair], source: str, case_insensitive: bool = True
) -> SimilarityScores:
    spelling = WordLookup(vectors, case_insensitive)
    found = [(spelling.resolve(pair.left), spelling.resolve(pair.right), pair.score) for pair in pairs]
    known = [(left, right, score) for left, right, score in found if left is not None and right is not None]
    if len(known) < 2:
        raise UserError(f"{source}: of {len(pairs):,} pairs, {len(known)} have vectors; there is nothing to compare")
    lefts, rights, truths = zip(*known, strict=True)
    cosines = np.einsum("ij,ij->i", vectors.get_unit_vectors(lefts), vectors.get_unit_vectors(rights))
    return SimilarityScores(
        float(spearman(cosines, truths)), float(pearson(cosines, truths)), len(known), len(known) / len(pairs)
    )


@dataclass(frozen=True)
class AnalogyScores:
    """Every section of a file of questions, and all of them together."""

    sections: list[AnalogySection]

    @property
    def total(self) -> AnalogySection:
        asked, known, right = (sum(column) for column in list(zip(*self.sections, strict=True))[1:])
        return AnalogySection("total", asked, known, right)

    @property
    def coverage(self) -> float:
        return self.total.num_covered / max(1, self.total.num_questions)


def evaluate_word_analogies(
    vectors: KeyedVectors, path: Path, case_insensitive: bool = True, restrict_vocab: int = RESTRICT_VOCAB
) -> AnalogyScores:
    """Each question's nearest word to b - a + c (3CosAdd) among the `most` first rows, but a, b and c; right or not.

    Questions with a word that has no such row are not counted. `fold` takes no notice of case, neither in the questions
    nor among the answers.
    """
    asked = read_analogies(path)
    spelling = WordLookup(vectors, case_insensitive, restrict_vocab)
    rows = np.array([[spelling.rows.get(spelling.normalize(word), -1) for word in one.words] for one in asked], np.int64)
    known = np.asarray((rows >= 0).all(1))
    right = np.zeros(len(asked), bool)
    if known.any():
        right[known] = _is_correct(spelling, rows[known], restrict_vocab)
    return AnalogyScores(_score_sections(asked, known, right))


def _is_correct(lookup: WordLookup, rows: np.ndarray, restrict_vocab: int) -> np.ndarray:
    vectors = lookup.vectors
    a, b, c, expected = rows.T
    unit = vectors.unit_matrix
    goals = l2_normalize(unit[b] - unit[a] + unit[c])
    same = np.array(
        [lookup.rows.get(lookup.normalize(word), row) for row, word in enumerate(vectors.words[:restrict_vocab])], np.int64
    )
    found = vectors.nearest_rows(goals, _excluded_rows(same, rows[:, :3]), restrict_vocab)
    return same[found] == expected


def _excluded_rows(canonical_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(questions, some): all rows that are written like one of a question's three words, -1 where there are fewer."""
    others = np.flatnonzero(canonical_rows != np.arange(len(canonical_rows)))
    if not len(others):
        return rows
    order = others[np.argsort(canonical_rows[others], kind="stable")]
    heads = canonical_rows[order]
    begin, end = np.searchsorted(heads, rows), np.searchsorted(heads, rows, "right")
    widest = int((end - begin).max())
    where = begin[..., None] + np.arange(widest)
    more = np.where(where < end[..., None], order[np.minimum(where, len(order) - 1)], -1)
    return np.concatenate([rows, more.reshape(len(rows), -1)], 1)


def _score_sections(questions: list[AnalogyQuestion], is_covered: np.ndarray, is_correct: np.ndarray) -> list[AnalogySection]:
    names = np.array([one.section for one in questions])
    order = dict.fromkeys(names.tolist())
    return [AnalogySection(n, int((s := names == n).sum()), int(is_covered[s].sum()), int(is_correct[s].sum())) for n in order]
