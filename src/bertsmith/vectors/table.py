"""The token table of a model as vectors of words."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..text.tokenizer import Tokenizer
from ..text.vocabulary import byte_characters
from .vectors import Vectors


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
