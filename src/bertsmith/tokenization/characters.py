"""How words are spelt, in the numbers that ELMo's characters have; words never seen are appended as they come."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

BOS_CHAR, EOS_CHAR = 256, 257  # of a sentence, each a word of one such letter
BOW_CHAR, EOW_CHAR, PAD_CHAR = 258, 259, 260  # a word begins, it is over, and what follows it
NUM_CHARS = 261


class Lexicon:
    """Numbered words: those of a vocabulary, and behind them those met since. It lives as long as the process does."""

    def __init__(self, words: Sequence[str] = (), bos_id: int = -1, eos_id: int = -1) -> None:
        """`begin` and `end` are the numbers of the words around a sentence."""
        self.words, self.bos_id, self.eos_id = list(words), bos_id, eos_id
        self.oov_ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.words)

    def get_id(self, word: str) -> int:
        """Of a word outside the vocabulary: the same whenever it comes again."""
        if word not in self.oov_ids:
            self.oov_ids[word] = len(self.words)
            self.words.append(word)
        return self.oov_ids[word]

    def char_ids(self, word_id: int, max_chars: int) -> list[int]:
        """`letters` numbers from 1 up, as the published model has them: a long word is cut."""
        inner = (
            [BOS_CHAR]
            if word_id == self.bos_id
            else [EOS_CHAR]
            if word_id == self.eos_id
            else list(self.words[word_id].encode())
        )
        spelt = [BOW_CHAR, *inner[: max_chars - 2], EOW_CHAR]
        return [one + 1 for one in spelt] + [PAD_CHAR + 1] * (max_chars - len(spelt))


class OovEncoding:
    """An encoding whose unknown words have numbers of their own."""

    def __init__(self, encoding: Encoding, ids: list[int]) -> None:
        self.encoding, self.ids = encoding, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoding, name)


def assign_oov_ids(
    encoding: Encoding, text: str, unk_token_id: int, normalize: Callable[[str], str], lexicon: Lexicon
) -> Encoding:
    ids = list(encoding.ids)
    for place, (start, end) in enumerate(encoding.offsets):
        if ids[place] == unk_token_id:
            ids[place] = lexicon.get_id(normalize(text[start:end]).strip())
    return cast(Encoding, OovEncoding(encoding, ids))


Ints = NDArray[np.int64]

FNV_OFFSET, FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)  # of FNV-1a


def hash_ngrams(words: Sequence[str], min_n: int, max_n: int, num_buckets: int) -> tuple[Ints, Ints]:
    """Buckets of the n-grams of all words, one word after another, and where those of each begin (words + 1,).

    As fastText counts them: n is in characters, the hash is of bytes, and a bracket alone is no n-gram.
    """
    spelt = [f"<{word}>".encode() for word in words]
    sizes = np.fromiter(map(len, spelt), np.int64, len(spelt))
    data = np.frombuffer(b"".join(spelt) + b"\0", np.uint8)
    owner, bucket = _hash_byte_ngrams(data, sizes, min_n, max_n, num_buckets)
    order = np.argsort(owner, kind="stable")
    starts = np.append(0, np.bincount(owner, minlength=len(spelt)).cumsum())
    return bucket[order], starts


def _hash_byte_ngrams(
    utf8_bytes: NDArray[np.uint8], word_sizes: Ints, min_n: int, max_n: int, num_buckets: int
) -> tuple[Ints, Ints]:
    """Word and bucket of each n-gram: from every character at once, a byte further at a time."""
    ends = word_sizes.cumsum()
    begins = (utf8_bytes & 0xC0) != 0x80  # a byte that begins a character of UTF-8, as the one behind the last does
    first = np.flatnonzero(begins[:-1])
    owner = np.searchsorted(ends, first, side="right")
    at, length = first.copy(), np.zeros(len(first), np.int64)
    state = np.full(len(first), FNV_OFFSET)
    owners, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(first):
        with np.errstate(over="ignore"):
            state = (state ^ utf8_bytes[at].view(np.int8).astype(np.uint32)) * FNV_PRIME  # signed bytes, as fastText has them
        at = at + 1
        over = at == ends[owner]
        length = length + (begins[at] | over)
        whole = (begins[at] | over) & (length >= min_n)
        whole &= (length > 1) | ~(over | (first == (ends - word_sizes)[owner]))
        owners.append(owner[whole])
        found.append((state[whole] % np.uint32(num_buckets)).astype(np.int64))
        on = ~over & ~(begins[at] & (length == max_n))
        first, owner, at, length, state = first[on], owner[on], at[on], length[on], state[on]
    return np.concatenate(owners), np.concatenate(found)
