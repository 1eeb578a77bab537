"""Tokenizer quality on a text (fertility, coverage, unknown words), computed from word counts."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..errors import UserError

_BATCH_SIZE = 4096
_NUM_WORST = 20


@dataclass(frozen=True)
class TokenizerQuality:
    """Fractions and means are over running words: each distinct word is weighted by its count."""

    words: int
    distinct: int
    fertility: float  # tokens per word
    whole: float  # fraction of words that are a single known token
    unknown: float  # fraction of words with at least one [UNK]
    coverage: float  # fraction of characters in known tokens
    characters_per_piece: float
    unused: int  # vocabulary entries that no word uses, special tokens included
    worst: list[tuple[str, int]]  # (word, tokens): words with most extra tokens in total (count * (tokens - 1)), worst first

    def table(self) -> list[tuple[str, str]]:
        """Rows to print: (name, formatted value)."""
        return [
            ("words", f"{self.words:,}"),
            ("distinct words", f"{self.distinct:,}"),
            ("pieces per word", f"{self.fertility:.3f}"),
            ("words in one piece", f"{self.whole:.2%}"),
            ("words with unknown pieces", f"{self.unknown:.3%}"),
            ("characters covered", f"{self.coverage:.3%}"),
            ("characters per piece", f"{self.characters_per_piece:.2f}"),
            ("unused pieces", f"{self.unused:,}"),
            ("costliest words", ", ".join(f"{word} ({num_tokens})" for word, num_tokens in self.worst[:8]) or "none"),
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
    worst: list[tuple[int, str, int]] = []  # heap of (extra tokens in total, word, its tokens)
    for word, count, ids in _encode_in_batches(counts, encode_words):
        num_unknown = sum(token_id == unk_token_id for token_id in ids)
        distinct, words, num_tokens = distinct + 1, words + count, num_tokens + count * len(ids)
        single_token_words += count * (len(ids) == 1 and not num_unknown)
        unknown_words += count * (num_unknown > 0)
        num_chars += count * len(word)
        covered_chars += count * (len(word) - num_unknown) * (num_unknown < len(ids))
        used_ids.update(ids)
        if len(ids) > 1:
            _push_worst(worst, (count * (len(ids) - 1), word, len(ids)))
    if not num_tokens:
        raise UserError("there are no words to measure the vocabulary on; give it text that is not empty")
    return TokenizerQuality(
        words=words,
        distinct=distinct,
        fertility=num_tokens / words,
        whole=single_token_words / words,
        unknown=unknown_words / words,
        coverage=covered_chars / num_chars,
        characters_per_piece=num_chars / num_tokens,
        unused=vocab_size - len(used_ids),
        worst=[(word, token_id) for _, word, token_id in sorted(worst, key=lambda entry: (-entry[0], entry[1]))],
    )


def _encode_in_batches(
    counts: Iterable[tuple[str, int]], encode_words: Callable[[list[str]], Sequence[Sequence[int]]]
) -> Iterator[tuple[str, int, Sequence[int]]]:
    entries = iter(counts)
    while batch := list(islice(entries, _BATCH_SIZE)):
        for (word, count), ids in zip(batch, encode_words([word for word, _ in batch]), strict=True):
            yield word, count, ids


def _push_worst(worst: list[tuple[int, str, int]], entry: tuple[int, str, int]) -> None:
    if len(worst) < _NUM_WORST:
        heapq.heappush(worst, entry)
    elif entry > worst[0]:
        heapq.heapreplace(worst, entry)
