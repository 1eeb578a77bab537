"""Characters of words: ELMo's character ids with an open vocabulary, and fastText's hashed character n-grams.

Peters et al. 2018 (ELMo): a word is its UTF-8 bytes between begin-of-word and end-of-word, padded.
Bojanowski et al. 2017 (fastText): a word is the set of its character n-grams, hashed into buckets.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

Ints = NDArray[np.int64]

BOS_CHAR, EOS_CHAR = 256, 257  # begin and end of sentence: each is a word of this one character
BOW_CHAR, EOW_CHAR, PAD_CHAR = 258, 259, 260  # begin of word, end of word, padding
NUM_CHARS = 261
FNV_OFFSET, FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)  # FNV-1a, 32 bits


class Lexicon:
    """Open vocabulary: the words of a vocabulary, then out-of-vocabulary words in order of appearance (not saved)."""

    def __init__(self, words: Sequence[str] = (), bos_id: int = -1, eos_id: int = -1) -> None:
        """`bos_id` and `eos_id` are the ids of the sentence boundary tokens."""
        self.words, self.bos_id, self.eos_id = list(words), bos_id, eos_id
        self.oov_ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.words)

    def get_id(self, word: str) -> int:
        """Id of an out-of-vocabulary word; the same for every occurrence."""
        if word not in self.oov_ids:
            self.oov_ids[word] = len(self.words)
            self.words.append(word)
        return self.oov_ids[word]

    def char_ids(self, word_id: int, max_chars: int) -> list[int]:
        """`max_chars` character ids of a word, framed, padded or truncated; plus 1, as in the published ELMo (0 is masking)."""
        chars = (
            [BOS_CHAR]
            if word_id == self.bos_id
            else [EOS_CHAR]
            if word_id == self.eos_id
            else list(self.words[word_id].encode())
        )
        framed = [BOW_CHAR, *chars[: max_chars - 2], EOW_CHAR]
        return [char + 1 for char in framed] + [PAD_CHAR + 1] * (max_chars - len(framed))


class OovEncoding:
    """An `Encoding` in which unknown words have ids of their own instead of [UNK]."""

    def __init__(self, encoding: Encoding, ids: list[int]) -> None:
        self.encoding, self.ids = encoding, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoding, name)


def assign_oov_ids(
    encoding: Encoding, text: str, unk_token_id: int, normalize: Callable[[str], str], lexicon: Lexicon
) -> Encoding:
    """Replace each [UNK] of an encoding by the lexicon's id of the normalized word at its offsets."""
    ids = list(encoding.ids)
    for position, (start, end) in enumerate(encoding.offsets):
        if ids[position] == unk_token_id:
            ids[position] = lexicon.get_id(normalize(text[start:end]).strip())
    return cast(Encoding, OovEncoding(encoding, ids))


def hash_ngrams(words: Sequence[str], min_n: int, max_n: int, num_buckets: int) -> tuple[Ints, Ints]:
    """Buckets of the n-grams of `<word>` for all words, concatenated, and the offset of each word's (words + 1,).

    As in fastText: n counts characters, FNV-1a hashes their UTF-8 bytes, and "<" or ">" alone is not an n-gram.
    """
    encoded_words = [f"<{word}>".encode() for word in words]
    word_sizes = np.fromiter(map(len, encoded_words), np.int64, len(encoded_words))
    utf8_bytes = np.frombuffer(b"".join(encoded_words) + b"\0", np.uint8)
    word_index, buckets = _hash_byte_ngrams(utf8_bytes, word_sizes, min_n, max_n, num_buckets)
    order = np.argsort(word_index, kind="stable")
    offsets = np.append(0, np.bincount(word_index, minlength=len(encoded_words)).cumsum())
    return buckets[order], offsets


def _hash_byte_ngrams(
    utf8_bytes: NDArray[np.uint8], word_sizes: Ints, min_n: int, max_n: int, num_buckets: int
) -> tuple[Ints, Ints]:
    """Word index and bucket of each n-gram; n-grams from all start characters grow in parallel, one byte per iteration."""
    ends = word_sizes.cumsum()
    is_char_start = (utf8_bytes & 0xC0) != 0x80  # not a UTF-8 continuation byte; the terminator counts as a start
    ngram_starts = np.flatnonzero(is_char_start[:-1])
    word_index = np.searchsorted(ends, ngram_starts, side="right")
    position, num_chars = ngram_starts.copy(), np.zeros(len(ngram_starts), np.int64)
    hashes = np.full(len(ngram_starts), FNV_OFFSET)
    word_indices, buckets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(ngram_starts):
        with np.errstate(over="ignore"):
            hashes = (hashes ^ utf8_bytes[position].view(np.int8).astype(np.uint32)) * FNV_PRIME  # signed bytes, as in fastText
        position = position + 1
        at_word_end = position == ends[word_index]
        num_chars = num_chars + (is_char_start[position] | at_word_end)
        is_ngram = (is_char_start[position] | at_word_end) & (num_chars >= min_n)
        is_ngram &= (num_chars > 1) | ~(at_word_end | (ngram_starts == (ends - word_sizes)[word_index]))
        word_indices.append(word_index[is_ngram])
        buckets.append((hashes[is_ngram] % np.uint32(num_buckets)).astype(np.int64))
        can_grow = ~at_word_end & ~(is_char_start[position] & (num_chars == max_n))
        ngram_starts, word_index, position, num_chars, hashes = (
            ngram_starts[can_grow],
            word_index[can_grow],
            position[can_grow],
            num_chars[can_grow],
            hashes[can_grow],
        )
    return np.concatenate(word_indices), np.concatenate(buckets)
