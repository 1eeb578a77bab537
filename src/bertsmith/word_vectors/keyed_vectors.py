"""Words with a vector each: which are near one another, and which stand to a third as two others do."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..metrics.scores import unit_rows
from ..tokenization.characters import grams
from ..tokenization.tokenizer import Tokenizer
from ..tokenization.trainers import byte_characters

Matrix = NDArray[np.float32]
Rows = NDArray[np.int64]

AT_ONCE = 1 << 24  # cosines held in memory at a time


class Vectors:
    """`words[i]` has the row `matrix[i]`; where order means anything, frequent words come first. A word whose row
    is of zeros is not known: the text it was learnt from did not hold it.

    A subclass that can make vectors of words it has no row for overrides `vector` and `knows`: all else asks these.
    """

    def __init__(self, words: Sequence[str], matrix: NDArray[Any]) -> None:
        self.words, self.matrix = list(words), np.asarray(matrix, np.float32)
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words) or not self.matrix.size:
            raise BadInput(f"{len(self.words):,} words do not go with a matrix of {self.matrix.shape}; there is a row a word")
        if len(self.index) < len(self.words):
            twice = next(word for row, word in enumerate(self.words) if self.index[word] != row)
            raise BadInput(f"the word {twice!r} stands twice; a word has one vector")

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def said(self) -> NDArray[np.bool_]:
        """For every row: it is not of zeros."""
        return np.asarray(self.matrix.any(1))

    @property
    def width(self) -> int:
        return self.matrix.shape[1]

    @cached_property
    def unit(self) -> Matrix:
        """Rows of length 1; one of zeros stays."""
        return unit_rows(self.matrix)

    def __len__(self) -> int:
        return len(self.words)

    def row(self, word: str) -> int | None:
        """Its number; None for a word that has none."""
        return self.index.get(word)

    def knows(self, word: str) -> bool:
        row = self.row(word)
        return row is not None and bool(self.said[row])

    def vector(self, word: str) -> Matrix:
        """(width,)."""
        if (row := self.row(word)) is not None:
            return self.matrix[row]
        near = get_close_matches(word, self.words[:100_000], n=1, cutoff=0.7)
        raise BadInput(f"there is no vector for {word!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

    def units(self, words: Iterable[str]) -> Matrix:
        """(words, width): the vectors of these words, each of length 1."""
        return unit_rows(np.stack([self.vector(word) for word in words]))

    def similarity(self, a: str, b: str) -> float:
        """The cosine of two words' vectors."""
        left, right = self.units([a, b])
        return float(left @ right)

    def neighbours(self, word: str, top: int = 10) -> list[tuple[str, float]]:
        """The words nearest by cosine, best first, itself left out."""
        return self._named(self.units([word]), [word], top)

    def analogy(self, a: str, b: str, c: str, top: int = 10) -> list[tuple[str, float]]:
        """`a` is to `b` as `c` is to ...: nearest to b - a + c (3CosAdd), the three themselves left out."""
        of_a, of_b, of_c = self.units([a, b, c])
        return self._named(unit_rows((of_b - of_a + of_c)[None]), [a, b, c], top)

    def first(self, goals: Matrix, without: Rows, limit: int | None = None) -> Rows:
        """For each goal (goals, width) the row of the nearest word among the first `limit`.

        `without` (goals, some) names rows that are no answer; -1 names none.
        """
        unit, found = self.unit[:limit], np.zeros(len(goals), np.int64)
        step = max(1, AT_ONCE // len(unit))
        for at in range(0, len(goals), step):
            scores = goals[at : at + step] @ unit.T
            left_out = without[at : at + step]
            row, column = np.nonzero((left_out >= 0) & (left_out < len(unit)))
            scores[row, left_out[row, column]] = -np.inf
            found[at : at + step] = scores.argmax(1)
        return found

    def _named(self, goal: Matrix, without: Sequence[str], top: int) -> list[tuple[str, float]]:
        if top < 1:
            raise BadInput(f"the {top} nearest are none; ask for one or more")
        scores = (self.unit @ goal[0]).astype(np.float64)
        scores[[row for word in without if (row := self.row(word)) is not None]] = -np.inf
        some = np.argsort(-scores, kind="stable")[:top]
        return [(self.words[row], float(scores[row])) for row in some if np.isfinite(scores[row])]


class Spelt(Vectors):
    """`buckets` (buckets, width) are the rows of n-grams of `least` to `most` characters, by their hash.

    `clean` is what the tokenizer does to a text before it cuts it: a word is looked up, and spelt, as it was learnt.
    """

    def __init__(
        self, words: Sequence[str], matrix: NDArray[Any], buckets: NDArray[Any], least: int, most: int,
        clean: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        super().__init__(words, matrix)
        self.buckets, self.least, self.most = np.asarray(buckets, np.float32), least, most
        self.clean = clean

    def row(self, word: str) -> int | None:
        as_written = super().row(word)
        return super().row(self._cleaned(word)) if as_written is None else as_written

    def knows(self, word: str) -> bool:
        return super().knows(word) or len(self._grams(word)) > 0

    def vector(self, word: str) -> Matrix:
        """(width,): its row, or for a word without one the mean of its n-grams."""
        rows = () if self.row(word) is not None else self._grams(word)
        return np.asarray(self.buckets[rows].mean(0), np.float32) if len(rows) else super().vector(word)

    def _grams(self, word: str) -> NDArray[np.int64]:
        return grams([self._cleaned(word)], self.least, self.most, len(self.buckets))[0]

    def _cleaned(self, word: str) -> str:
        return "".join(self.clean(word).split())  # some set spaces around every ideograph


def words_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Each piece that begins a word, as that word, and its id; special tokens and pieces inside words are none.

    Where the space before a word is marked (`Ġthe`, `▁the`), only pieces with the mark are words; of bytes, only those that
    are whole characters, and no space among them.
    """
    mark = tokenizer.marks_starts or ""
    begins = ~tokenizer.continues & ~tokenizer.special
    spelt = _bytes_read() if mark == "Ġ" else str
    named = ((spelt(piece.removeprefix(mark)), number) for number, piece in enumerate(tokenizer.pieces) if begins[number])
    return {word: number for word, number in named if word}


def _bytes_read() -> Callable[[str], str]:
    """From visible characters, each of which stands for a byte, to the text they spell; nothing, if that is no word."""
    byte = {character: number for number, character in enumerate(byte_characters())}

    def spelt(piece: str) -> str:
        try:
            word = bytes(byte[character] for character in piece).decode()
        except (KeyError, UnicodeDecodeError):
            return ""
        return word if word.split() == [word] else ""

    return spelt


def of_table(tokenizer: Tokenizer, table: NDArray[Any]) -> Vectors:
    """The rows of the words a tokenizer has whole, in the order of their ids."""
    found = words_of(tokenizer)
    return Vectors(list(found), np.asarray(table, np.float32)[list(found.values())])
