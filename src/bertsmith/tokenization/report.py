"""How well a vocabulary fits a text, told from the counts of its words."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..errors import UserError

_BATCH_SIZE = 4096
_NUM_WORST = 20


@dataclass(frozen=True)
class TokenizerQuality:
    """Shares and means are over running words, so a frequent word weighs as often as it is read."""

    words: int
    distinct: int
    fertility: float  # pieces per word
    whole: float  # share of words that are one known piece
    unknown: float  # share of words with an unknown piece in them
    coverage: float  # share of characters in known pieces
    characters_per_piece: float
    unused: int  # entries of the vocabulary that no word needs; special tokens are among them
    worst: list[tuple[str, int]]  # (word, pieces): the split words which cost most pieces in all, worst first

    def table(self) -> list[tuple[str, str]]:
        """Rows to print: what is measured, and its value."""
        return [
            ("words", f"{self.words:,}"),
            ("distinct words", f"{self.distinct:,}"),
            ("pieces per word", f"{self.fertility:.3f}"),
            ("words in one piece", f"{self.whole:.2%}"),
            ("words with unknown pieces", f"{self.unknown:.3%}"),
            ("characters covered", f"{self.coverage:.3%}"),
            ("characters per piece", f"{self.characters_per_piece:.2f}"),
            ("unused pieces", f"{self.unused:,}"),
            ("costliest words", ", ".join(f"{word} ({pieces})" for word, pieces in self.worst[:8]) or "none"),
        ]


def measure_quality(
    counts: Iterable[tuple[str, int]],
    encode_words: Callable[[list[str]], Sequence[Sequence[int]]],
    unk_token_id: int | None,
    vocab_size: int,
) -> TokenizerQuality:
    """Cut each distinct word once, thousands in a batch, and weigh it by its count.

    A word all of unknown pieces has no character covered; among known ones, an unknown piece stands for one character.
    """
    words = distinct = pieces = whole = unknown = characters = covered = 0
    used: set[int] = set()
    worst: list[tuple[int, str, int]] = []  # extra pieces in all, word, its pieces
    for word, count, ids in _encode_in_batches(counts, encode_words):
        missing = sum(number == unk_token_id for number in ids)
        distinct, words, pieces = distinct + 1, words + count, pieces + count * len(ids)
        whole += count * (len(ids) == 1 and not missing)
        unknown += count * (missing > 0)
        characters += count * len(word)
        covered += count * (len(word) - missing) * (missing < len(ids))
        used.update(ids)
        if len(ids) > 1:
            _push_worst(worst, (count * (len(ids) - 1), word, len(ids)))
    if not pieces:
        raise UserError("there are no words to measure the vocabulary on; give it text that is not empty")
    return TokenizerQuality(
        words=words,
        distinct=distinct,
        fertility=pieces / words,
        whole=whole / words,
        unknown=unknown / words,
        coverage=covered / characters,
        characters_per_piece=characters / pieces,
        unused=vocab_size - len(used),
        worst=[(word, number) for _, word, number in sorted(worst, key=lambda entry: (-entry[0], entry[1]))],
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
