"""Read a file in chunks of rows, each with the neighboring rows that document context needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, tee
from typing import Any, NamedTuple

from ..tokenization.tokenizer import Tokenizer
from .base import Task
from .conll_files import Sentence
from .table_rows import BadRow
from .words import encode_words


class RowChunk(NamedTuple):
    """Rows to predict, and the neighboring rows of the same documents that serve only as context."""

    rows: Sequence[Any]
    before: Sequence[Sentence] = ()
    after: Sequence[Sentence] = ()
    number: int = 0  # of the chunk in the file


@dataclass(frozen=True)
class DocumentContext:
    """How many neighboring rows a task with `context` needs on each side of a sentence."""

    task: Task
    tokenizer: Tokenizer
    max_length: int

    def context_rows(self, row: Sentence, neighbors: Iterator[Sentence | BadRow]) -> list[Sentence]:
        """The leading `neighbors` in the same document as `row`, up to `max_context` subwords."""
        context, document_id, budget = list[Sentence](), row.document_id, self.task.max_context(self.max_length)
        while budget > 0 and document_id is not None and (neighbor := next(neighbors, None)) is not None:
            if isinstance(neighbor, BadRow):
                continue
            if neighbor.document_id != document_id:
                break
            context.append(neighbor)
            budget -= sum(map(len, encode_words([neighbor], self.tokenizer)[0]))
        return context


def chunk_rows(rows: Iterator[Any], chunk_size: int, context: DocumentContext | None = None) -> Iterator[RowChunk]:
    """All rows in order, `chunk_size` at a time; each sentence gets the same context as if the file were read at once.

    Besides a chunk, only its context rows (and invalid rows between them) are in memory.
    """
    before: list[Sentence] = []
    for number in count():
        if not (chunk := list(islice(rows, chunk_size))):
            return
        if context is None:
            yield RowChunk(chunk, number=number)
            continue
        valid = [*before, *(row for row in chunk if not isinstance(row, BadRow))]
        rows, lookahead = tee(rows)
        yield RowChunk(chunk, before, context.context_rows(valid[-1], lookahead) if valid else [], number)
        before = context.context_rows(valid[-1], reversed(valid))[::-1] if valid else []
