"""Labels the machine gives for free: which package a paragraph of documentation is from."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from .docstrings import Document

LABELS = 6  # packages at most, those with most text
LEARN, JUDGE = 60, 100  # paragraphs of each to learn from, few as labels are, and to be judged on, if there are as many
FEWEST = 30  # of either, or the package is not among them
WORDS = 12  # of a paragraph that may say where it is from
HELD_OUT = 5  # every fifth file is one to be judged on


@dataclass(frozen=True)
class Task:
    """Rows of text and label, as many of each label; what is judged is from files that nothing is learnt from."""

    labels: list[str]
    learn: list[dict[str, str]]
    judge: list[dict[str, str]]
    held_out: set[tuple[str, str]]  # package and path of the files that `judge` is from


def task_of(documents: Sequence[Document]) -> Task | None:
    """The packages with most text, told apart; None if there are no two with enough. The same files give the same task."""
    found = {name: _split(some) for name, some in _by_package(documents).items()}
    enough = [name for name, (learn, judge) in found.items() if min(len(learn), len(judge)) >= FEWEST]
    labels = sorted(sorted(enough, key=lambda name: (-len(found[name][0]), name))[:LABELS])
    if len(labels) < 2:
        return None
    learn, judge = ([found[name][side] for name in labels] for side in (0, 1))
    held_out = {(one.package, one.path) for one in documents if one.package in labels and _is_held_out(one)}
    return Task(labels, _rows(labels, learn, LEARN), _rows(labels, judge, JUDGE), held_out)


def lines(rows: Iterable[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _by_package(documents: Iterable[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        found[document.package].append(document)
    return found


def _split(documents: Iterable[Document]) -> tuple[list[str], list[str]]:
    """Paragraphs to learn from and to be judged on; the first of each file come first, so that no file is most of them."""
    sides: tuple[list[list[str]], list[list[str]]] = [], []
    for document in sorted(documents, key=lambda one: _draw(one.path)):
        long = [paragraph for paragraph in document.paragraphs if len(paragraph.split()) >= WORDS]
        sides[_is_held_out(document)].append(sorted(long, key=_draw))
    learn, judge = ([text for text in chain.from_iterable(zip_longest(*side)) if text] for side in sides)
    return learn, judge


def _rows(labels: list[str], texts: list[list[str]], most: int) -> list[dict[str, str]]:
    """As many of each label, in an order that has nothing to do with it."""
    size = min(most, *map(len, texts))
    rows = [{"text": text, "label": label} for label, some in zip(labels, texts, strict=True) for text in some[:size]]
    return sorted(rows, key=lambda row: _draw(row["text"]))


def _is_held_out(document: Document) -> bool:
    return _draw(f"{document.package}: {document.path}")[0] % HELD_OUT == 0


def _draw(text: str) -> bytes:
    """A throw of dice that falls alike for the same text, everywhere."""
    return hashlib.sha256(text.encode()).digest()
