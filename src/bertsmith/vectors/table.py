"""The token table of a model as vectors of words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..text.tokenizer import Tokenizer
from .vectors import Vectors


def words_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Each piece that begins a word, as that word, and its id; special tokens and pieces inside words are none.

    Where the space before a word is marked (`Ġthe`, `▁the`), only pieces with the mark are words.
    """
    mark = tokenizer.marks_starts or ""
    begins = ~tokenizer.continues & ~tokenizer.special
    named = ((piece.removeprefix(mark), number) for number, piece in enumerate(tokenizer.pieces) if begins[number])
    return {word: number for word, number in named if word}


def of_table(tokenizer: Tokenizer, table: NDArray[Any]) -> Vectors:
    """The rows of the words a tokenizer has whole, in the order of their ids."""
    found = words_of(tokenizer)
    return Vectors(list(found), np.asarray(table, np.float32)[list(found.values())])
