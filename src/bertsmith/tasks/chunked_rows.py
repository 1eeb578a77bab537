"""Rows of a file, some at a time, each time with the rows around them that context reaches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any, NamedTuple

from ..tokenization.tokenizer import Tokenizer
from .requests import Request
from .table_rows import BadRow
from .token_classification import TokenClassification, encode_words


class RowChunk(NamedTuple):
    """Rows that are to be answered, and those of the same documents beside them, which are only to be seen."""

    rows: Sequence[Any]
    before: Sequence[Request] = ()
    after: Sequence[Request] = ()


@dataclass(frozen=True)
class DocumentContext:
    """How far a model that is shown the document of a sentence sees, on each side of it."""

    task: TokenClassification
    tokenizer: Tokenizer
    max_length: int

    def context_rows(self, row: Request, neighbors: Iterator[Request | BadRow]) -> list[Request]:
        """The first of these rows that are of its document, until they have as many pieces as it can be shown."""
        found, document, left = list[Request](), row.example.document_id, self.task.max_context(self.max_length)
        while left > 0 and document is not None and (one := next(neighbors, None)) is not None:
            if isinstance(one, BadRow):
                continue
            if one.example.document_id != document:
                break
            found.append(one)
            left -= sum(map(len, encode_words([one.example], self.tokenizer)[0]))
        return found


def chunk_rows(rows: Iterator[Any], chunk_size: int, context: DocumentContext | None = None) -> Iterator[RowChunk]:
    """All the rows in order, `size` at a time; every sentence has around it what it would have if all were there.

    Besides them are in memory only the rows that are seen, and bad ones among those.
    """
    before: list[Request] = []
    while some := list(islice(rows, chunk_size)):
        if context is None:
            yield RowChunk(some)
            continue
        good = [*before, *(one for one in some if not isinstance(one, BadRow))]
        rows, ahead = tee(rows)
        yield RowChunk(some, before, context.context_rows(good[-1], ahead) if good else [])
        before = context.context_rows(good[-1], reversed(good))[::-1] if good else []
