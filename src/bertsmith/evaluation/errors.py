"""What is wrong with the tags of a sentence: entities missed, made up, of another type, or with other borders."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np

from ..metrics.scores import ranks
from ..tasks import Answering, Choose, Classify, Generate, Regress, Similar, Tag
from ..tasks.scorers.conlleval import Entity, entities, marks_spans
from .evaluate import Judged

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


LONGEST = 600  # characters of a text that are told
BESIDE = 160  # characters of a passage on each side of an answer


@dataclass(frozen=True)
class Mistake:
    """`loss` orders them: nats for labels, distance for numbers, faults for tags, how sure and how wrong for answers."""

    kind: str
    place: str
    truth: str
    answer: str
    confidence: float | None
    loss: float
    texts: list[list[Span]]


def mistakes(judged: Judged) -> list[Mistake]:
    """All of them, worst first; equals in the order of the file."""
    kinds: dict[type, Callable[[Judged], list[Mistake]]] = {
        Classify: _labels, Regress: _numbers, Similar: _likeness, Tag: _tags, Answering: _answers, Choose: _choices,
        Generate: _replies,
    }  # fmt: skip
    return sorted(kinds[type(judged.task)](judged), key=lambda one: -one.loss)


def _labels(judged: Judged) -> list[Mistake]:
    task, found = judged.task, []
    assert isinstance(task, Classify)
    for said, one in zip(judged.answers, judged.examples, strict=True):
        if task.many:
            true = {label.strip() for label in one.label.split("|")} - {""}
            wrong, given = true.symmetric_difference(said.labels), " | ".join(said.labels)
            loss = sum(-np.log(max(said.scores[n] if n in true else 1 - said.scores[n], 1e-12)) for n in task.labels)
            sure = max((abs(said.scores[n] - (n in true)) for n in wrong), default=None)
        else:
            wrong, given = {said.label} - {one.label}, said.label
            loss, sure = -np.log(max(said.scores[one.label], 1e-12)), said.scores[said.label]
        if wrong:
            found.append(
                Mistake("label", one.place, one.label or "no label", given or "no label", sure, float(loss), _told(one))
            )
    return found


def _choices(judged: Judged) -> list[Mistake]:
    found = []
    for said, one in zip(judged.answers, judged.examples, strict=True):
        if said.choice != one.label:
            loss = float(-np.log(max(said.scores[one.label], 1e-12)))
            texts = [[Span(_cut(text))] for text in (one.context, one.question) if text]
            truth, sure = one.options[one.label], said.scores[said.choice]
            found.append(Mistake("option", one.place, _cut(truth), _cut(said.option), sure, loss, texts))
    return found


def _numbers(judged: Judged) -> list[Mistake]:
    pairs = zip(judged.answers, judged.examples, strict=True)
    return [Mistake("number", one.place, f"{one.label:.4g}", f"{said.value:.4g}", None, abs(said.value - one.label), _told(one))
            for said, one in pairs]  # fmt: skip


def _likeness(judged: Judged) -> list[Mistake]:
    """Cosines and scores are on two scales: what counts is how far apart their ranks are."""
    said, true = (np.array([one.score for one in side]) for side in (judged.answers, judged.examples))
    apart = np.abs(ranks(said) - ranks(true)) / max(len(said) - 1, 1)
    rows = zip(said, true, apart, judged.examples, strict=True)
    return [Mistake("rank", one.place, f"{t:.4g}", f"{s:.4g}", None, float(far), _told(one)) for s, t, far, one in rows]


def _tags(judged: Judged) -> list[Mistake]:
    """A sentence each: the faults are marked where they stand."""
    return [
        Mistake("tags", one.place, one.truth, one.answer, None, float(one.count), [one.spans])
        for one in sentences(judged.answers, judged.examples)
    ]


def _answers(judged: Judged) -> list[Mistake]:
    task, found = judged.task, []
    assert isinstance(task, Answering)
    for said, one, f1 in zip(judged.answers, judged.examples, task.each(judged.answers, judged.examples)[1], strict=True):
        if f1 < 1:
            kind = "missed" if not said.text else "made up" if not one.answers else "partly right" if f1 else "wrong"
            truth = " / ".join(dict.fromkeys(one.answers)) or "no answer"
            texts = [[Span(one.question)], _passage(said, one)]
            found.append(
                Mistake(kind, one.place, truth, said.text or "no answer", said.score, float(1 - f1) * said.score, texts)
            )
    return found


def _replies(judged: Judged) -> list[Mistake]:
    """By how little of the longest common subsequence there is."""
    task, found = judged.task, []
    assert isinstance(task, Generate)
    scores = task.each(judged.answers, judged.examples)
    for said, one, shared, same in zip(judged.answers, judged.examples, scores["rougeL"], scores["exact"], strict=True):
        if not same:
            found.append(Mistake("text", one.place, _cut(one.target), _cut(said.text), None, float(1 - shared), _told(one)))
    return found


def _passage(said: Any, one: Any) -> list[Span]:
    """The passage around what was said and what is true; where they overlap, both marks are one."""
    marks = [(*one.span, "true")] if one.span else []
    if said.start is not None:
        marks.append((said.start, said.end, "said"))
    marks.sort()
    if len(marks) == 2 and marks[0][1] > marks[1][0]:
        marks = [(marks[0][0], max(marks[0][1], marks[1][1]), "both")]
    if not marks:
        return [Span(_cut(one.context))]
    spans, at = [], max(0, marks[0][0] - BESIDE)
    spans += [Span("… ")] if at else []
    for start, end, mark in marks:
        gap = one.context[at:start]
        spans.append(Span(gap if len(gap) <= 2 * BESIDE else f"{gap[:BESIDE]} … {gap[-BESIDE:]}"))
        spans.append(Span(one.context[start:end], mark))
        at = end
    rest = one.context[at:]
    return [*spans, Span(rest if len(rest) <= BESIDE else f"{rest[:BESIDE]} …")]


def _told(example: Any) -> list[list[Span]]:
    return [[Span(_cut(text))] for text in (example.text, getattr(example, "text_b", None)) if text is not None]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text):,} characters)"
