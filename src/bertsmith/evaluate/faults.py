"""What is wrong with the tags of a sentence: entities missed, made up, of another type, or with other borders."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from ..tasks.entities import Entity, entities, marks_spans

MOST = 120  # tokens of a sentence that are told


@dataclass(frozen=True)
class Span:
    """A stretch of text, and what is to be said of it, if anything."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Fault:
    kind: str  # missed, made up, wrong type, wrong border, wrong type and border
    there: Entity | None
    found: Entity | None

    @property
    def types(self) -> str:
        """As `PER` or, where another was said, `PER as LOC`."""
        names = [one.type or "word" for one in (self.there, self.found) if one]
        return " as ".join(dict.fromkeys(names))

    @property
    def reach(self) -> tuple[int, int]:
        """All tokens it is about."""
        both = [one for one in (self.there, self.found) if one]
        return min(one.start for one in both), max(one.end for one in both)


@dataclass(frozen=True)
class Faulty:
    """A sentence that is not all right."""

    place: str
    truth: str
    answer: str
    count: int
    spans: list[Span]


def faults(said: Sequence[str], gold: Sequence[str]) -> list[Fault]:
    """In the order of the sentence; an entity is told once, with the first of the other side that it overlaps."""
    if said == gold:
        return []
    found, there = sorted(set(entities(said)) - set(entities(gold))), sorted(set(entities(gold)) - set(entities(said)))
    told = []
    for true in there:
        over = next((one for one in found if one.start < true.end and true.start < one.end), None)
        if over:
            found.remove(over)
        told.append(Fault(_kind(true, over), true, over))
    return sorted([*told, *(Fault("made up", None, one) for one in found)], key=lambda fault: fault.reach)


def tally(answers: Sequence[Any], examples: Sequence[Any]) -> list[tuple[str, str, int]]:
    """(kind, types, times) of all faults, most frequent first; nothing where tags mark no entities."""
    if not _mark_spans(answers, examples):
        return []
    every = (fault for said, one in zip(answers, examples, strict=True) for fault in faults(said.tags, one.tags))
    return [(*name, times) for name, times in Counter((fault.kind, fault.types) for fault in every).most_common()]


def sentences(answers: Sequence[Any], examples: Sequence[Any]) -> list[Faulty]:
    """Every sentence with a fault; where tags mark no entities, a wrong tag is a fault."""
    spans = _mark_spans(answers, examples)
    rows = []
    for said, one in zip(answers, examples, strict=True):
        if said.tags == one.tags:
            continue
        marks = _entity_marks(said.tags, one.tags) if spans else _tag_marks(said.tags, one.tags)
        if marks:
            told = _listed(one.tokens, one.tags, spans), _listed(one.tokens, said.tags, spans)
            rows.append(Faulty(one.place, *told, len(marks), _spans(one.tokens, marks)))
    return rows


def _kind(true: Entity, said: Entity | None) -> str:
    if said is None:
        return "missed"
    if (said.start, said.end) == (true.start, true.end):
        return "wrong type"
    return "wrong border" if said.type == true.type else "wrong type and border"


def _mark_spans(answers: Sequence[Any], examples: Sequence[Any]) -> bool:
    return marks_spans(sorted({*chain.from_iterable(one.tags for one in (*answers, *examples))}))


def _entity_marks(said: Sequence[str], gold: Sequence[str]) -> list[tuple[int, int, str]]:
    return [(*fault.reach, f"{fault.kind}: {fault.types}") for fault in faults(said, gold)]


def _tag_marks(said: Sequence[str], gold: Sequence[str]) -> list[tuple[int, int, str]]:
    pairs = enumerate(zip(said, gold, strict=True))
    return [(place, place + 1, f"{true} as {given}") for place, (given, true) in pairs if given != true]


def _listed(tokens: Sequence[str], tags: Sequence[str], spans: bool) -> str:
    """Entities as `PER Kim Young` one after another; of parts of speech nothing, since the text shows them."""
    if not spans:
        return ""
    found = [f"{one.type} {written(tokens[one.start : one.end])}".strip() for one in entities(tags)]
    return ", ".join(found) or "nothing"


def _spans(tokens: Sequence[str], marks: list[tuple[int, int, str]]) -> list[Span]:
    """The sentence with its marks, from the first on if it is very long; a token has one mark."""
    first = max(0, marks[0][0] - MOST // 4) if len(tokens) > MOST else 0
    last = min(len(tokens), first + MOST)
    owner = [""] * len(tokens)
    for number, (start, end, mark) in enumerate(marks):
        owner[start:end] = [f"{number} {mark}"] * (end - start)
    spans = [Span("… ")] if first else []
    for mark, group in groupby(range(first, last), key=lambda place: owner[place]):
        places = list(group)
        before = space(tokens[places[0] - 1], tokens[places[0]]) if places[0] > first else ""
        spans += [Span(before)] * bool(before) + [Span(written([tokens[i] for i in places]), mark.partition(" ")[2])]
    return spans + [Span(" …")] * (last < len(tokens))


def written(tokens: Sequence[str]) -> str:
    """Tokens as a text: with spaces, but none between Chinese characters."""
    return "".join(chain.from_iterable((space(tokens[i - 1], one) if i else "", one) for i, one in enumerate(tokens)))


def space(before: str, after: str) -> str:
    return "" if _east(before[-1:]) and _east(after[:1]) else " "


def _east(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef"
