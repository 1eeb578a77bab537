"""Benchmarks of word vectors: word similarity (WordSim-353, SimLex-999) and analogies (Mikolov et al. 2013).

- read_word_pairs, read_analogies: the published file formats
- evaluate_word_pairs, evaluate_word_analogies: scores of KeyedVectors, as gensim computes them
"""

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
    """Two words and their human similarity score."""

    left: str
    right: str
    score: float


class AnalogyQuestion(NamedTuple):
    """words[0] is to words[1] as words[2] is to words[3]."""

    section: str
    words: tuple[str, str, str, str]


def read_word_pairs(path: Path) -> list[WordPair]:
    """Reads word pairs from a .csv, or from columns separated by tabs or spaces.

    The columns are the first three, or those named by a header as in WordSim-353, SimLex-999 and similar files (word1,
    word2, similarity ...). Lines that begin with # are comments.
    """
    pairs, columns = list[WordPair](), None
    for line_number, cells in _read_cells(path):
        if columns is None:
            columns, is_header = _find_columns([cell.strip().lower() for cell in cells])
            if is_header:
                continue
        # one published file ends with a line of only a number
        if any("".join(cells[column : column + 1]).strip() for column in columns):
            pairs.append(_parse_pair(path, line_number, cells, columns))
    if not pairs:
        raise UserError(f"{path} contains no pairs; a line must be two words and a number")
    return pairs


def read_analogies(path: Path) -> list[AnalogyQuestion]:
    """Reads questions-words.txt and similar files: four words per line, in sections that begin with a line `: name`."""
    questions, section = list[AnalogyQuestion](), None
    for line_number, line in _read_lines(path):
        if line.startswith(":"):
            section = line.lstrip(": ")
            continue
        words = line.split()
        if len(words) != 4 or section is None:
            problem = (
                f"{line[:60]!r} is not four words" if section is not None else "no section header (`: name`) comes before it"
            )
            raise UserError(f"{path}, line {line_number:,}: {problem}")
        questions.append(AnalogyQuestion(section, (words[0], words[1], words[2], words[3])))
    if not questions:
        raise UserError(f"{path} contains no questions; a line must be four words, below a section header (`: name`)")
    return questions


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    for line_number, raw_line in LineReader(path):
        line = raw_line.removeprefix("\ufeff").strip() if line_number == 1 else raw_line.strip()
        if line.isascii() or not any("\udc80" <= c <= "\udcff" for c in line):
            if line:
                yield line_number, line
        else:
            raise UserError(f"{path}, line {line_number:,} is not UTF-8; convert the file")


def _read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line_number, line in _read_lines(path):
        if line.startswith("#"):
            continue
        yield line_number, line.split("\t") if "\t" in line else next(csv.reader([line])) if "," in line else line.split()


def _find_columns(names: list[str]) -> tuple[tuple[int, int, int], bool]:
    """Column indices of the two words and the score, and whether the line is a header."""
    columns = [
        next((names.index(name) for name in aliases if name in names), None)
        for aliases in (LEFT_COLUMNS, RIGHT_COLUMNS, SCORE_COLUMNS)
    ]
    left, right, score = columns
    if left is not None and right is not None and score is not None:
        return (left, right, score), True
    return (0, 1, 2), False


def _parse_pair(path: Path, line_number: int, cells: list[str], columns: tuple[int, int, int]) -> WordPair:
    try:
        left, right, score = (cells[column].strip() for column in columns)
        value = float(score)
    except (IndexError, ValueError):
        value = math.nan
    if not math.isfinite(value) or not left or not right:
        raise UserError(f"{path}, line {line_number:,}: {', '.join(cells)[:60]!r} is not two words and a number")
    return WordPair(left, right, value)


RESTRICT_VOCAB = 300_000  # rows that analogies are answered from, gensim's default


class SimilarityScores(NamedTuple):
    """Correlations over the pairs whose words both have a vector; coverage is the fraction of such pairs."""

    spearman: float
    pearson: float
    pairs: int
    coverage: float


class AnalogySection(NamedTuple):
    """Counts of a section: all questions, those whose four words have a vector, those answered correctly."""

    name: str
    num_questions: int
    num_covered: int
    num_correct: int

    @property
    def accuracy(self) -> float:
        """num_correct / num_covered; nan if no question is covered."""
        return self.num_correct / self.num_covered if self.num_covered else float("nan")


class WordLookup:
    """Row of each word; with `case_insensitive`, the first row of all that differ only by case. Zero rows are left out.

    limit: only the first `limit` rows are used.
    """

    def __init__(self, vectors: KeyedVectors, case_insensitive: bool = True, limit: int | None = None) -> None:
        self.vectors, self.case_insensitive = vectors, case_insensitive
        self.rows = dict[str, int]()
        for row, word in enumerate(vectors.words[:limit]):
            if vectors.is_nonzero[row]:
                self.rows.setdefault(self.normalize(word), row)

    def normalize(self, word: str) -> str:
        """The key of a word in `rows`."""
        return word.upper() if self.case_insensitive else word

    def resolve(self, word: str) -> str | None:
        """The word as in `vectors.words`, or None if it has no vector."""
        row = self.rows.get(self.normalize(word))
        return self.vectors.words[row] if row is not None else word if self.vectors.has_vector(word) else None


def evaluate_word_pairs(vectors: KeyedVectors, path: Path, case_insensitive: bool = True) -> SimilarityScores:
    """Spearman and Pearson correlation of cosine similarities with human scores; pairs with unknown words are left out."""
    return score_word_pairs(vectors, read_word_pairs(path), str(path), case_insensitive)


def score_word_pairs(
    vectors: KeyedVectors, pairs: list[WordPair], source: str, case_insensitive: bool = True
) -> SimilarityScores:
    """The same for pairs in memory; `source` names them in errors."""
    lookup = WordLookup(vectors, case_insensitive)
    resolved = [(lookup.resolve(pair.left), lookup.resolve(pair.right), pair.score) for pair in pairs]
    covered = [(left, right, score) for left, right, score in resolved if left is not None and right is not None]
    if len(covered) < 2:
        raise UserError(f"{source}: of {len(pairs):,} pairs, {len(covered)} have vectors; a correlation needs at least two")
    lefts, rights, gold = zip(*covered, strict=True)
    cosines = np.einsum("ij,ij->i", vectors.get_unit_vectors(lefts), vectors.get_unit_vectors(rights))
    return SimilarityScores(
        float(spearman(cosines, gold)), float(pearson(cosines, gold)), len(covered), len(covered) / len(pairs)
    )


@dataclass(frozen=True)
class AnalogyScores:
    """Scores of every section of an analogy file, and in total."""

    sections: list[AnalogySection]

    @property
    def total(self) -> AnalogySection:
        num_questions, num_covered, num_correct = (sum(column) for column in list(zip(*self.sections, strict=True))[1:])
        return AnalogySection("total", num_questions, num_covered, num_correct)

    @property
    def coverage(self) -> float:
        return self.total.num_covered / max(1, self.total.num_questions)


def evaluate_word_analogies(
    vectors: KeyedVectors, path: Path, case_insensitive: bool = True, restrict_vocab: int = RESTRICT_VOCAB
) -> AnalogyScores:
    """Accuracy of 3CosAdd: the row nearest to b - a + c among the first `restrict_vocab`, without a, b and c.

    Questions with a word outside these rows are not covered. `case_insensitive` applies to questions and answers.
    """
    questions = read_analogies(path)
    lookup = WordLookup(vectors, case_insensitive, restrict_vocab)
    rows = np.array(
        [[lookup.rows.get(lookup.normalize(word), -1) for word in question.words] for question in questions], np.int64
    )
    is_covered = np.asarray((rows >= 0).all(1))
    is_correct = np.zeros(len(questions), bool)
    if is_covered.any():
        is_correct[is_covered] = _is_correct(lookup, rows[is_covered], restrict_vocab)
    return AnalogyScores(_score_sections(questions, is_covered, is_correct))


def _is_correct(lookup: WordLookup, rows: np.ndarray, restrict_vocab: int) -> np.ndarray:
    """(questions,) bool; rows: (questions, 4)."""
    vectors = lookup.vectors
    a, b, c, expected = rows.T
    unit = vectors.unit_matrix
    queries = l2_normalize(unit[b] - unit[a] + unit[c])
    canonical_rows = np.array(
        [lookup.rows.get(lookup.normalize(word), row) for row, word in enumerate(vectors.words[:restrict_vocab])], np.int64
    )
    nearest = vectors.nearest_rows(queries, _excluded_rows(canonical_rows, rows[:, :3]), restrict_vocab)
    return canonical_rows[nearest] == expected


def _excluded_rows(canonical_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(questions, n): rows of a, b and c and all rows that differ from them only by case, padded with -1."""
    duplicates = np.flatnonzero(canonical_rows != np.arange(len(canonical_rows)))
    if not len(duplicates):
        return rows
    order = duplicates[np.argsort(canonical_rows[duplicates], kind="stable")]
    sorted_keys = canonical_rows[order]
    begin, end = np.searchsorted(sorted_keys, rows), np.searchsorted(sorted_keys, rows, "right")
    max_count = int((end - begin).max())
    index = begin[..., None] + np.arange(max_count)
    extra = np.where(index < end[..., None], order[np.minimum(index, len(order) - 1)], -1)
    return np.concatenate([rows, extra.reshape(len(rows), -1)], 1)


def _score_sections(questions: list[AnalogyQuestion], is_covered: np.ndarray, is_correct: np.ndarray) -> list[AnalogySection]:
    names = np.array([question.section for question in questions])
    section_names = dict.fromkeys(names.tolist())
    return [
        AnalogySection(
            name, int((in_section := names == name).sum()), int(is_covered[in_section].sum()), int(is_correct[in_section].sum())
        )
        for name in section_names
    ]
