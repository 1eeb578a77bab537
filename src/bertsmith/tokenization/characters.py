"""How words are spelt, in the numbers that ELMo's characters have; words never seen are appended as they come."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

BEGIN, END = 256, 257  # of a sentence, each a word of one such letter
WORD, OVER, PADDING = 258, 259, 260  # a word begins, it is over, and what follows it
SYMBOLS = 261


class Lexicon:
    """Numbered words: those of a vocabulary, and behind them those met since. It lives as long as the process does."""

    def __init__(self, words: Sequence[str] = (), begin: int = -1, end: int = -1) -> None:
        """`begin` and `end` are the numbers of the words around a sentence."""
        self.words, self.begin, self.end = list(words), begin, end
        self.new: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.words)

    def number(self, word: str) -> int:
        """Of a word outside the vocabulary: the same whenever it comes again."""
        if word not in self.new:
            self.new[word] = len(self.words)
            self.words.append(word)
        return self.new[word]

    def spelling(self, number: int, letters: int) -> list[int]:
        """`letters` numbers from 1 up, as the published model has them: a long word is cut."""
        inner = [BEGIN] if number == self.begin else [END] if number == self.end else list(self.words[number].encode())
        spelt = [WORD, *inner[: letters - 2], OVER]
        return [one + 1 for one in spelt] + [PADDING + 1] * (letters - len(spelt))


class Numbered:
    """An encoding whose unknown words have numbers of their own."""

    def __init__(self, encoding: Encoding, ids: list[int]) -> None:
        self.encoding, self.ids = encoding, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoding, name)


def numbered(encoding: Encoding, text: str, unknown: int, clean: Callable[[str], str], lexicon: Lexicon) -> Encoding:
    ids = list(encoding.ids)
    for place, (start, end) in enumerate(encoding.offsets):
        if ids[place] == unknown:
            ids[place] = lexicon.number(clean(text[start:end]).strip())
    return cast(Encoding, Numbered(encoding, ids))


Ints = NDArray[np.int64]

OFFSET, PRIME = np.uint32(2166136261), np.uint32(16777619)  # of FNV-1a


def grams(words: Sequence[str], least: int, most: int, buckets: int) -> tuple[Ints, Ints]:
    """Buckets of the n-grams of all words, one word after another, and where those of each begin (words + 1,).

    As fastText counts them: n is in characters, the hash is of bytes, and a bracket alone is no n-gram.
    """
    spelt = [f"<{word}>".encode() for word in words]
    sizes = np.fromiter(map(len, spelt), np.int64, len(spelt))
    data = np.frombuffer(b"".join(spelt) + b"\0", np.uint8)
    owner, bucket = _found(data, sizes, least, most, buckets)
    order = np.argsort(owner, kind="stable")
    starts = np.append(0, np.bincount(owner, minlength=len(spelt)).cumsum())
    return bucket[order], starts


def _found(data: NDArray[np.uint8], sizes: Ints, least: int, most: int, buckets: int) -> tuple[Ints, Ints]:
    """Word and bucket of each n-gram: from every character at once, a byte further at a time."""
    ends = sizes.cumsum()
    begins = (data & 0xC0) != 0x80  # a byte that begins a character of UTF-8, as the one behind the last does
    first = np.flatnonzero(begins[:-1])
    owner = np.searchsorted(ends, first, side="right")
    at, length = first.copy(), np.zeros(len(first), np.int64)
    state = np.full(len(first), OFFSET)
    owners, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(first):
        with np.errstate(over="ignore"):
            state = (state ^ data[at].view(np.int8).astype(np.uint32)) * PRIME  # signed bytes, as fastText has them
        at = at + 1
        over = at == ends[owner]
        length = length + (begins[at] | over)
        whole = (begins[at] | over) & (length >= least)
        whole &= (length > 1) | ~(over | (first == (ends - sizes)[owner]))
        owners.append(owner[whole])
        found.append((state[whole] % np.uint32(buckets)).astype(np.int64))
        on = ~over & ~(begins[at] & (length == most))
        first, owner, at, length, state = first[on], owner[on], at[on], length[on], state[on]
    return np.concatenate(owners), np.concatenate(found)
