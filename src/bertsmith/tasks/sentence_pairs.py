"""Training pairs for sentence embeddings from plain text, without labels: what stands beside what in a document."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal

from ..rng import Stream, randint, random_bits
from .table_rows import BadRow

if TYPE_CHECKING:
    from .similarity import SimilarityExample

PairKind = Literal["same", "neighbors", "title"]
MIN_DISTANCE = 3  # lines between a pair and its hard negative


def pair_sentences(lines: "Iterable[SimilarityExample | BadRow]", kind: PairKind) -> "Iterator[SimilarityExample | BadRow]":
    """Examples of the lines of documents, which empty lines separate.

    - same: each line alone; training encodes it twice, with two dropout masks (SimCSE)
    - neighbors: each line and the next, with a hard negative: another line of the document, at least `MIN_DISTANCE` lines away
      from both; a pair without one, in a short document, is left out
    - title: the first line of each document, its title, and the second, the beginning of its text
    """
    if kind == "same":
        yield from (line for line in lines if isinstance(line, BadRow) or line.text.strip())
        return
    document: list[SimilarityExample] = []
    for line in chain(lines, [None]):
        if isinstance(line, BadRow):
            yield line
        elif line is not None and line.text.strip():
            document.append(line)
        else:
            yield from _pair_title(document) if kind == "title" else _pair_neighbors(document)
            document = []


def _pair_title(document: "list[SimilarityExample]") -> "Iterator[SimilarityExample]":
    if len(document) > 1:
        yield replace(document[0], text_b=document[1].text)


def _pair_neighbors(document: "list[SimilarityExample]") -> "Iterator[SimilarityExample]":
    """The hard negative is a pure function of the line's number and the length of its document."""
    for i, (first, second) in enumerate(pairwise(document)):
        before, after = max(0, i - MIN_DISTANCE + 1), min(len(document), i + 1 + MIN_DISTANCE)  # of the lines to choose from
        if num_candidates := before + len(document) - after:
            chosen = int(randint(random_bits(0, Stream.SENTENCE_NEGATIVES, first.line), num_candidates))
            negative = document[chosen if chosen < before else chosen - before + after]
            yield replace(first, text_b=second.text, negative=negative.text)
