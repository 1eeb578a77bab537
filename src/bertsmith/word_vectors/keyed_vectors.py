"""Word vectors by word, with similarity, nearest neighbours and analogies (gensim's KeyedVectors).

- KeyedVectors, FastTextKeyedVectors (with vectors of unknown words from n-grams)
- whole_words, vectors_from_table: the words of a tokenizer, and their rows of an embedding table
"""

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

MAX_SCORES_IN_MEMORY = 1 << 24  # cosine similarities computed at a time


class KeyedVectors:
    """Word vectors: `matrix[i]` (float32) is the vector of `words[i]`, most frequent words first.

    A zero row means that the training text did not contain the word. A subclass with vectors for words without a row
    overrides `get_vector` and `has_vector`.
    """

    def __init__(self, words: Sequence[str], matrix: NDArray[Any]) -> None:
        self.words, self.matrix = list(words), np.asarray(matrix, np.float32)
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words) or not self.matrix.size:
            raise UserError(
                f"{len(self.words):,} words do not match a matrix of shape {self.matrix.shape}; give one row per word"
            )
        if len(self.key_to_index) < len(self.words):
            duplicate = next(word for row, word in enumerate(self.words) if self.key_to_index[word] != row)
            raise UserError(f"the word {duplicate!r} occurs twice; give one vector per word")

    @cached_property
    def key_to_index(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def is_nonzero(self) -> NDArray[np.bool_]:
        """(words,): False for zero rows."""
        return np.asarray(self.matrix.any(1))

    @property
    def vector_size(self) -> int:
        return self.matrix.shape[1]

    @cached_property
    def unit_matrix(self) -> Matrix:
        """L2-normalized rows; zero rows stay zero."""
        return l2_normalize(self.matrix)

    def __len__(self) -> int:
        return len(self.words)

    def get_index(self, word: str) -> int | None:
        """Row of a word, or None."""
        return self.key_to_index.get(word)

    def has_vector(self, word: str) -> bool:
        """Whether the word has a nonzero vector."""
        row = self.get_index(word)
        return row is not None and bool(self.is_nonzero[row])

    def get_vector(self, word: str) -> Matrix:
        """(vector_size,); a UserError for an unknown word."""
        if (row := self.get_index(word)) is not None:
            return self.matrix[row]
        suggestions = get_close_matches(word, self.words[:100_000], n=1, cutoff=0.7)
        raise UserError(f"there is no vector for {word!r}" + (f"; did you mean {suggestions[0]!r}?" if suggestions else ""))

    def get_unit_vectors(self, words: Iterable[str]) -> Matrix:
        """(words, vector_size): L2-normalized vectors of these words."""
        return l2_normalize(np.stack([self.get_vector(word) for word in words]))

    def similarity(self, a: str, b: str) -> float:
        """Cosine similarity of two words."""
        left, right = self.get_unit_vectors([a, b])
        return float(left @ right)

    def most_similar(self, word: str, topn: int = 10) -> list[tuple[str, float]]:
        """The `topn` nearest words by cosine similarity, best first, without the word itself."""
        return self._top_words(self.get_unit_vectors([word]), [word], topn)

    def analogy(self, a: str, b: str, c: str, topn: int = 10) -> list[tuple[str, float]]:
        """a is to b as c is to ...: the words nearest to b - a + c (3CosAdd), without a, b and c."""
        unit_a, unit_b, unit_c = self.get_unit_vectors([a, b, c])
        return self._top_words(l2_normalize((unit_b - unit_a + unit_c)[None]), [a, b, c], topn)

    def nearest_rows(self, queries: Matrix, excluded_rows: RowIndices, limit: int | None = None) -> RowIndices:
        """(queries,): the row nearest to each query among the first `limit` rows.

        queries: (queries, vector_size), L2-normalized; excluded_rows: (queries, n), padded with -1.
        """
        candidates, nearest = self.unit_matrix[:limit], np.zeros(len(queries), np.int64)
        step = max(1, MAX_SCORES_IN_MEMORY // len(candidates))
        for start in range(0, len(queries), step):
            scores = queries[start : start + step] @ candidates.T
            excluded = excluded_rows[start : start + step]
            row, column = np.nonzero((excluded >= 0) & (excluded < len(candidates)))
            scores[row, excluded[row, column]] = -np.inf
            nearest[start : start + step] = scores.argmax(1)
        return nearest

    def _top_words(self, query: Matrix, excluded_words: Sequence[str], topn: int) -> list[tuple[str, float]]:
        if topn < 1:
            raise UserError(f"topn={topn} must be at least 1")
        scores = (self.unit_matrix @ query[0]).astype(np.float64)
        scores[[row for word in excluded_words if (row := self.get_index(word)) is not None]] = -np.inf
        best = np.argsort(-scores, kind="stable")[:topn]
        return [(self.words[row], float(scores[row])) for row in best if np.isfinite(scores[row])]


class FastTextKeyedVectors(KeyedVectors):
    """KeyedVectors with vectors of unknown words, from their character n-grams (fastText, Bojanowski et al. 2017).

    buckets: (buckets, vector_size), vectors of n-grams of min_n to max_n characters, by hash.
    normalize: the normalizer of the tokenizer, applied to a word before it is looked up.
    """

    def __init__(
        self, words: Sequence[str], matrix: NDArray[Any], buckets: NDArray[Any], min_n: int, max_n: int,
        normalize: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        super().__init__(words, matrix)
        self.buckets, self.min_n, self.max_n = np.asarray(buckets, np.float32), min_n, max_n
        self.normalize = normalize

    def get_index(self, word: str) -> int | None:
        row = super().get_index(word)
        return super().get_index(self._normalize_word(word)) if row is None else row

    def has_vector(self, word: str) -> bool:
        return super().has_vector(word) or len(self._ngram_rows(word)) > 0

    def get_vector(self, word: str) -> Matrix:
        """(vector_size,): the row of the word, or the mean of its n-gram vectors if it has none."""
        rows = () if self.get_index(word) is not None else self._ngram_rows(word)
        return np.asarray(self.buckets[rows].mean(0), np.float32) if len(rows) else super().get_vector(word)

    def _ngram_rows(self, word: str) -> NDArray[np.int64]:
        return hash_ngrams([self._normalize_word(word)], self.min_n, self.max_n, len(self.buckets))[0]

    def _normalize_word(self, word: str) -> str:
        return "".join(self.normalize(word).split())  # some normalizers put spaces around ideographs


def whole_words(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the tokens that are whole words, by word; no special tokens and no continuations (`##ing`).

    Where a prefix marks the start of a word (`Ġthe`, `▁the`), it is removed, and tokens without it are not words. Byte-level
    tokens are decoded; those that are not valid UTF-8 or contain spaces are not words.
    """
    prefix = tokenizer.word_start_prefix or ""
    is_word_start = ~tokenizer.is_continuation & ~tokenizer.is_special
    decode = _byte_decoder() if prefix == "Ġ" else str
    pairs = (
        (decode(token.removeprefix(prefix)), token_id)
        for token_id, token in enumerate(tokenizer.id_to_token)
        if is_word_start[token_id]
    )
    return {word: token_id for word, token_id in pairs if word}


def _byte_decoder() -> Callable[[str], str]:
    """Decoder of byte-level BPE tokens (a character per byte) to text; "" if that is not a word."""
    byte_of = {character: value for value, character in enumerate(bytes_to_unicode())}

    def decode(token: str) -> str:
        try:
            word = bytes(byte_of[character] for character in token).decode()
        except (KeyError, UnicodeDecodeError):
            return ""
        return word if word.split() == [word] else ""

    return decode


def vectors_from_table(tokenizer: Tokenizer, table: NDArray[Any]) -> KeyedVectors:
    """Rows of an embedding table (vocab_size, vector_size) for the whole words of a tokenizer, in id order."""
    ids = whole_words(tokenizer)
    return KeyedVectors(list(ids), np.asarray(table, np.float32)[list(ids.values())])
