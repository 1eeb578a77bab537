"""Words with a vector each: which are near one another, and which stand to a third as two others do."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..metrics.scores import l2_normalize
from ..tokenization.characters import hash_ngrams
from ..tokenization.tokenizer import Tokenizer
from ..tokenization.trainers import bytes_to_unicode

Matrix = NDArray[np.float32]
RowIndices = NDArray[np.int64]

MAX_SCORES_IN_MEMORY = 1 << 24  # cosines held in memory at a time


class KeyedVectors:
    """`words[i]` has the row `matrix[i]`; where order means anything, frequent words come first. A word whose row
    is of zeros is not known: the text it was learnt from did not hold it.

    A subclass that can make vectors of words it has no row for overrides `vector` and `knows`: all else asks these.
    """

    def __init__(self, words: Sequence[str], matrix: NDArray[Any]) -> None:
        self.words, self.matrix = list(words), np.asarray(matrix, np.float32)
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words) or not self.matrix.size:
            raise UserError(f"{len(self.words):,} words do not go with a matrix of {self.matrix.shape}; there is a row a word")
        if len(self.key_to_index) < len(self.words):
            twice = next(word for row, word in enumerate(self.words) if self.key_to_index[word] != row)
            raise UserError(f"the word {twice!r} stands twice; a word has one vector")

    @cached_property
    def key_to_index(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def is_nonzero(self) -> NDArray[np.bool_]:
        """For every row: it is not of zeros."""
        return np.asarray(self.matrix.any(1))

    @property
    def vector_size(self) -> int:
        return self.matrix.shape[1]

    @cached_property
    def unit_matrix(self) -> Matrix:
        """Rows of length 1; one of zeros stays."""
        return l2_normalize(self.matrix)

    def __len__(self) -> int:
        return len(self.words)

    def get_index(self, word: str) -> int | None:
        """Its number; None for a word that has none."""
        return self.key_to_index.get(word)

    def has_vector(self, word: str) -> bool:
        row = self.get_index(word)
        return row is not None and bool(self.is_nonzero[row])

    def get_vector(self, word: str) -> Matrix:
        """(width,)."""
        if (row := self.get_index(word)) is not None:
            return self.matrix[row]
        near = get_close_matches(word, self.words[:100_000], n=1, cutoff=0.7)
        raise UserError(f"there is no vector for {word!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

    def get_unit_vectors(self, words: Iterable[str]) -> Matrix:
        """(words, width): the vectors of these words, each of length 1."""
        return l2_normalize(np.stack([self.get_vector(word) for word in words]))

    def similarity(self, a: str, b: str) -> float:
        """The cosine of two words' vectors."""
        left, right = self.get_unit_vectors([a, b])
        return float(left @ right)

    def most_similar(self, word: str, topn: int = 10) -> list[tuple[str, float]]:
        """The words nearest by cosine, best first, itself left out."""
        return self._top_words(self.get_unit_vectors([word]), [word], topn)

    def analogy(self, a: str, b: str, c: str, topn: int = 10) -> list[tuple[str, float]]:
        """`a` is to `b` as `c` is to ...: nearest to b - a + c (3CosAdd), the three themselves left out."""
        of_a, of_b, of_c = self.get_unit_vectors([a, b, c])
        return self._top_words(l2_normalize((of_b - of_a + of_c)[None]), [a, b, c], topn)

    def nearest_rows(self, queries: Matrix, excluded_rows: RowIndices, limit: int | None = None) -> RowIndices:
        """For each goal (goals, width) the row of the nearest word among the first `limit`.

        `without` (goals, some) names rows that are no answer; -1 names none.
        """
        unit, found = self.unit_matrix[:limit], np.zeros(len(queries), np.int64)
        step = max(1, MAX_SCORES_IN_MEMORY // len(unit))
        for at in range(0, len(queries), step):
            scores = queries[at : at + step] @ unit.T
            left_out = excluded_rows[at : at + step]
            row, column = np.nonzero((left_out >= 0) & (left_out < len(unit)))
            scores[row, left_out[row, column]] = -np.inf
            found[at : at + step] = scores.argmax(1)
        return found

    def _top_words(self, query: Matrix, excluded_words: Sequence[str], topn: int) -> list[tuple[str, float]]:
        if topn < 1:
            raise UserError(f"the {topn} nearest are none; ask for one or more")
        scores = (self.unit_matrix @ query[0]).astype(np.float64)
        scores[[row for word in excluded_words if (row := self.get_index(word)) is not None]] = -np.inf
        some = np.argsort(-scores, kind="stable")[:topn]
        return [(self.words[row], float(scores[row])) for row in some if np.isfinite(scores[row])]


class FastTextKeyedVectors(KeyedVectors):
    """`buckets` (buckets, width) are the rows of n-grams of `least` to `most` characters, by their hash.

    `clean` is what the tokenizer does to a text before it cuts it: a word is looked up, and spelt, as it was learnt.
    """

    def __init__(
        self, words: Sequence[str], matrix: NDArray[Any], buckets: NDArray[Any], min_n: int, max_n: int,
        normalize: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        super().__init__(words, matrix)
        self.buckets, self.min_n, self.max_n = np.asarray(buckets, np.float32), min_n, max_n
        self.normalize = normalize

    def get_index(self, word: str) -> int | None:
        as_written = super().get_index(word)
        return super().get_index(self._normalize_word(word)) if as_written is None else as_written

    def has_vector(self, word: str) -> bool:
        return super().has_vector(word) or len(self._ngram_rows(word)) > 0

    def get_vector(self, word: str) -> Matrix:
        """(width,): its row, or for a word without one the mean of its n-grams."""
        rows = () if self.get_index(word) is not None else self._ngram_rows(word)
        return np.asarray(self.buckets[rows].mean(0), np.float32) if len(rows) else super().get_vector(word)

    def _ngram_rows(self, word: str) -> NDArray[np.int64]:
        return hash_ngrams([self._normalize_word(word)], self.min_n, self.max_n, len(self.buckets))[0]

    def _normalize_word(self, word: str) -> str:
        return "".join(self.normalize(word).split())  # some set spaces around every ideograph


def whole_words(tokenizer: Tokenizer) -> dict[str, int]:
    """Each piece that begins a word, as that word, and its id; special tokens and pieces inside words are none.

    Where the space before a word is marked (`Ġthe`, `▁the`), only pieces with the mark are words; of bytes, only those that
    are whole characters, and no space among them.
    """
    mark = tokenizer.word_start_prefix or ""
    begins = ~tokenizer.is_continuation & ~tokenizer.is_special
    spelt = _byte_decoder() if mark == "Ġ" else str
    named = ((spelt(piece.removeprefix(mark)), number) for number, piece in enumerate(tokenizer.id_to_token) if begins[number])
    return {word: number for word, number in named if word}


def _byte_decoder() -> Callable[[str], str]:
    """From visible characters, each of which stands for a byte, to the text they spell; nothing, if that is no word."""
    byte = {character: number for number, character in enumerate(bytes_to_unicode())}

    def spelt(piece: str) -> str:
        try:
            word = bytes(byte[character] for character in piece).decode()
        except (KeyError, UnicodeDecodeError):
            return ""
        return word if word.split() == [word] else ""

    return spelt


def vectors_from_table(tokenizer: Tokenizer, table: NDArray[Any]) -> KeyedVectors:
    """The rows of the words a tokenizer has whole, in the order of their ids."""
    found = whole_words(tokenizer)
    return KeyedVectors(list(found), np.asarray(table, np.float32)[list(found.values())])
