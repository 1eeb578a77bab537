"""Tokenizer quality on a text (fertility, coverage, unknown words), computed from word counts."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..errors import UserError

_BATCH_SIZE = 4096
_NUM_COSTLIEST = 20
COSTLIEST_WORDS = "words with most extra tokens"


@dataclass(frozen=True)
class TokenizerQuality:
    """Fractions and means are over running words: each distinct word is weighted by its count."""

    words: int
    distinct_words: int
    fertility: float  # tokens per word
    single_token_rate: float  # fraction of words that are a single known token
    unknown_word_rate: float  # fraction of words with at least one [UNK]
    coverage: float  # fraction of characters in known tokens
    characters_per_token: float
    unused_tokens: int  # vocabulary entries that no word uses, special tokens included
    costliest_words: list[tuple[str, int]]  # (word, its tokens), by extra tokens in the text: count * (tokens - 1)

    def table(self) -> list[tuple[str, str]]:
        """Rows to print: (name, formatted value)."""
        return [
            ("words", f"{self.words:,}"),
            ("distinct words", f"{self.distinct_words:,}"),
            ("fertility (tokens per word)", f"{self.fertility:.3f}"),
            ("words of a single token", f"{self.single_token_rate:.2%}"),
            ("words with [UNK]", f"{self.unknown_word_rate:.3%}"),
            ("character coverage", f"{self.coverage:.3%}"),
            ("characters per token", f"{self.characters_per_token:.2f}"),
            ("unused tokens", f"{self.unused_tokens:,}"),
            (COSTLIEST_WORDS, ", ".join(f"{word} ({num_tokens})" for word, num_tokens in self.costliest_words[:8]) or "none"),
        ]


def measure_quality(
    counts: Iterable[tuple[str, int]],
    encode_words: Callable[[list[str]], Sequence[Sequence[int]]],
    unk_token_id: int | None,
    vocab_size: int,
) -> TokenizerQuality:
    """Tokenize each distinct word once, in batches, and weight it by its count.

    Coverage: a word of only [UNK] has no character covered; otherwise each [UNK] counts as one uncovered character.
    """
    words = distinct = num_tokens = single_token_words = unknown_words = num_chars = covered_chars = 0
    used_ids: set[int] = set()
    costliest: list[tuple[int, str, int]] = []  # heap of (extra tokens in total, word, its tokens)
    for word, count, ids in _encode_in_batches(counts, encode_words):
        num_unknown = sum(token_id == unk_token_id for token_id in ids)
        distinct, words, num_tokens = distinct + 1, words + count, num_tokens + count * len(ids)
        single_token_words += count * (len(ids) == 1 and not num_unknown)
        unknown_words += count * (num_unknown > 0)
        num_chars += count * len(word)
        covered_chars += count * (len(word) - num_unknown) * (num_unknown < len(ids))
        used_ids.update(ids)
        if len(ids) > 1:
            _push_costliest(costliest, (count * (len(ids) - 1), word, len(ids)))
    if not num_tokens:
        raise UserError("the texts contain no words to evaluate the tokenizer on; check `texts`")
    return TokenizerQuality(
        words=words,
        distinct_words=distinct,
        fertility=num_tokens / words,
        single_token_rate=single_token_words / words,
        unknown_word_rate=unknown_words / words,
        coverage=covered_chars / num_chars,
        characters_per_token=num_chars / num_tokens,
        unused_tokens=vocab_size - len(used_ids),
        costliest_words=[
            (word, num_tokens) for _, word, num_tokens in sorted(costliest, key=lambda entry: (-entry[0], entry[1]))
        ],
    )


def _encode_in_batches(
    counts: Iterable[tuple[str, int]], encode_words: Callable[[list[str]], Sequence[Sequence[int]]]
) -> Iterator[tuple[str, int, Sequence[int]]]:
    entries = iter(counts)
    while batch := list(islice(entries, _BATCH_SIZE)):
        for (word, count), ids in zip(batch, encode_words([word for word, _ in batch]), strict=True):
            yield word, count, ids


def _push_costliest(costliest: list[tuple[int, str, int]], entry: tuple[int, str, int]) -> None:
    if len(costliest) < _NUM_COSTLIEST:
        heapq.heappush(costliest, entry)
    elif entry > costliest[0]:
        heapq.heapreplace(costliest, entry)
