"""What stands around a sentence in its document, as far as a sequence has room for it."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, groupby

import numpy as np

Pieces = list[list[int]]  # the ids of each token of a sentence


def neighbours(
    sentences: Sequence[Pieces], documents: Sequence[Hashable], room: int, most: int
) -> Iterator[tuple[list[int], list[int]]]:
    """For each sentence the ids before it and after it: whole tokens of its own document, `most` ids a side.

    Sentences that follow one another with the same document are its sentences. The room a sentence leaves is halved, and
    what one side cannot fill the other takes; a sentence that fills the room has nothing around it.
    """
    numbered = groupby(range(len(sentences)), documents.__getitem__)
    for _, numbers in numbered:
        yield from _within([sentences[number] for number in numbers], room, most)


def _within(sentences: Sequence[Pieces], room: int, most: int) -> Iterator[tuple[list[int], list[int]]]:
    flat = list(chain.from_iterable(chain.from_iterable(sentences)))
    borders = np.cumsum([0, *(len(ids) for tokens in sentences for ids in tokens)])
    end = 0
    for tokens in sentences:
        start, end = end, end + sum(map(len, tokens))
        left, right = _shared(min(start, most), min(len(flat) - end, most), max(0, room - (end - start)))
        first = int(borders[np.searchsorted(borders, start - left)])
        last = int(borders[np.searchsorted(borders, end + right, "right") - 1])
        yield flat[first:start], flat[end:last]


def _shared(before: int, after: int, spare: int) -> tuple[int, int]:
    left = min(before, max(spare // 2, spare - after))
    return left, min(after, spare - left)
