"""The worst mistakes, with what was asked, what is true and what was said, the surest and furthest off first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..metrics import ranks
from ..tasks import Answering, Choose, Classify, Generate, Regress, Similar, Tag
from .faults import Span, sentences
from .judge import Judged

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
