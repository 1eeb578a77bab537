"""Rows of a file, some at a time, each time with the rows around them that context reaches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any, NamedTuple

from ..tokenization.tokenizer import Tokenizer
from .requests import Asked
from .table_rows import BadRow
from .token_classification import Tag, pieces_of


class Stretch(NamedTuple):
    """Rows that are to be answered, and those of the same documents beside them, which are only to be seen."""

    rows: Sequence[Any]
    before: Sequence[Asked] = ()
    after: Sequence[Asked] = ()


@dataclass(frozen=True)
class Reach:
    """How far a model that is shown the document of a sentence sees, on each side of it."""

    task: Tag
    tokenizer: Tokenizer
    length: int

    def seen(self, last: Asked, others: Iterator[Asked | BadRow]) -> list[Asked]:
        """The first of these rows that are of its document, until they have as many pieces as it can be shown."""
        found, document, left = list[Asked](), last.example.within, self.task.reach(self.length)
        while left > 0 and document is not None and (one := next(others, None)) is not None:
            if isinstance(one, BadRow):
                continue
            if one.example.within != document:
                break
            found.append(one)
            left -= sum(map(len, pieces_of([one.example], self.tokenizer)[0]))
        return found


def stretches(rows: Iterator[Any], size: int, reach: Reach | None = None) -> Iterator[Stretch]:
    """All the rows in order, `size` at a time; every sentence has around it what it would have if all were there.

    Besides them are in memory only the rows that are seen, and bad ones among those.
    """
    before: list[Asked] = []
    while some := list(islice(rows, size)):
        if reach is None:
            yield Stretch(some)
            continue
        good = [*before, *(one for one in some if not isinstance(one, BadRow))]
        rows, ahead = tee(rows)
        yield Stretch(some, before, reach.seen(good[-1], ahead) if good else [])
        before = reach.seen(good[-1], reversed(good))[::-1] if good else []
