"""The best spans of a passage, from scores for where an answer starts and ends in each of its windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import Count
from ..errors import BadInput
from ..tokenization.tokenizer import Tokenizer, whole
from .base import Answer, Encoded, Head, Scores, ids_of, most_context, windows
from .scorers import cmrc, squad
from .special_tokens import Guided
from .squad_files import Question, questions
from .table_rows import Kept


@dataclass(frozen=True)
class Window:
    """A sequence's stretch of the passage: pieces from `first` on, the characters of each, which of them may start one."""

    first: int
    offsets: NDArray[np.int64]  # (pieces, 2), into the whole passage
    own: NDArray[np.bool_]  # (pieces,) no other window sees more around it


@dataclass(frozen=True)
class Span:
    """Characters of the passage; `score` is the logarithm of its probability in its window."""

    score: float
    start: int
    end: int


def best_spans(windows: Sequence[Window], scores: Sequence[NDArray[Any]], longest: int, count: int) -> tuple[list[Span], float]:
    """At most `count` different spans, the best first, and the score of there being none: what the most doubting window says.

    Scores are (length, 2) a window, and become probabilities by a softmax over starts and one over ends, of the
    passage and [CLS], which stands for no answer here. A span starts where its window sees most around it.
    """
    found, nulls = list[Span](), list[float]()
    for window, given in zip(windows, scores, strict=True):
        logs = _log_softmax(np.asarray(given, np.float64)[np.r_[0, window.first : window.first + len(window.offsets)]])
        nulls.append(float(logs[0].sum()))
        found += _spans(window, logs[1:], longest, count)
    best: dict[tuple[int, int], Span] = {}
    for span in sorted(found, key=lambda span: -span.score):
        best.setdefault((span.start, span.end), span)
    return list(best.values())[:count], min(nulls, default=0.0)


def covering(offsets: NDArray[np.int64], start: int, end: int) -> tuple[int, int] | None:
    """The first and the last piece that hold any of these characters; None if none does."""
    places = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(places[0]), int(places[-1])) if len(places) else None


def _spans(window: Window, logs: NDArray[np.float64], longest: int, count: int) -> list[Span]:
    """Every start with every end that is no more than `longest` pieces away: not only the best of each."""
    starts, ends = np.where(window.own, logs[:, 0], -np.inf), np.append(logs[:, 1], np.full(longest - 1, -np.inf))
    if not len(starts):
        return []
    table = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, longest)  # (start, pieces more)
    flat = table.ravel()
    top = np.argpartition(-flat, count - 1)[:count] if len(flat) > count else np.arange(len(flat))
    top = top[np.isfinite(flat[top])]
    return [
        Span(float(flat[at]), int(window.offsets[at // longest, 0]), int(window.offsets[at // longest + at % longest, 1]))
        for at in top[np.argsort(-flat[top], kind="stable")]
    ]


def _log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = scores - scores.max(0)
    return shifted - np.log(np.exp(shifted).sum(0))


@dataclass(frozen=True)
class Candidate:
    text: str
    start: int  # characters of the passage
    end: int
    score: float  # its probability in the window it was found in


@dataclass(frozen=True)
class Answered(Answer):
    """The answer as the passage writes it; empty, without start and end, where there is none."""

    text: str
    start: int | None
    end: int | None
    score: float
    no_answer: float  # by how much the score of no answer is above that of the best candidate
    candidates: tuple[Candidate, ...]


class Answering(Guided, frozen=True, tag="answer"):
    no_answer: Annotated[bool, "some questions have no answer in their passage, as in SQuAD 2.0"] = False
    threshold: Annotated[float, "no answer: how far its score must be above the best answer's; tuned on data.dev"] = 0.0
    scorer: Annotated[Literal["squad", "cmrc"], "exact match and F1 of words (English), or as CMRC does (Chinese)"] = "squad"
    long: Annotated[Literal["window", "truncate"], "a passage over the length: windows, of which the best answers, or cut"] = (
        "window"
    )
    stride: Annotated[Count, "pieces of the passage from the start of one window to the next, at most half a window"] = 128
    question: Annotated[Count, "pieces of a question that are kept, at most half of the model's length"] = 64
    longest: Annotated[Count, "pieces an answer may have"] = 30
    candidates: Annotated[Count, "how many of the best answers are told"] = 20
    skip_bad: Annotated[bool, "leave out and count questions that cannot be used"] = False

    head: ClassVar[Head] = "span"
    outputs: ClassVar[int] = 2
    slots: ClassVar[tuple[str, ...]] = ("question", "context")
    anchored: ClassVar[int | None] = 0  # the question

    def read(self, path: Path) -> Kept[Question]:
        return Kept(path, questions(path, self.no_answer, self.named), self.skip_bad)

    def fitted(self, examples: Sequence[Question]) -> "Answering":
        """With its guide tokens: there are no labels to learn."""
        return msgspec.structs.replace(self, guides=self.met(examples))

    def encode(self, examples: Sequence[Question], tokenizer: Tokenizer, length: int) -> Encoded:
        """[CLS] question [SEP] window [SEP]. Targets: `start` and `end`, places in each sequence.

        A window that does not hold the whole answer points at [CLS], as does a question without one.
        """
        if length < 8:
            raise BadInput(f"sequences of {length} tokens leave no room for a passage; take a length of 8 or more")
        contexts = list(dict.fromkeys(tokenizer.readable(one.context) for one in examples))
        passages = dict(zip(contexts, tokenizer.encode_all(contexts), strict=True))
        encoded, owners, places = Encoded([], [], np.zeros(0, np.int64)), list[int](), list[tuple[int, int]]()
        asking = zip(ids_of([one.question for one in examples], tokenizer), self.beside(examples, tokenizer), strict=True)
        for number, (asked, guides) in enumerate(asking):
            passage = passages[whole(examples[number].context)]
            offsets, span = np.array(passage.offsets, np.int64).reshape(-1, 2), examples[number].span
            pieces = covering(offsets, *span) if span else None
            asked = asked[: min(self.question, guides.room(length, True) // 2)]
            first = [tokenizer.cls, *guides.first, *asked, tokenizer.sep]
            before, after = [*first, *guides.second], [*guides.last, tokenizer.sep]
            for (start, end), window in self._windowed(offsets, len(before), length - len(before) - len(after)):
                ids = [*before, *passage.ids[start:end], *after]
                encoded.ids.append(np.array(ids, np.int64))
                encoded.segments.append((np.arange(len(ids)) >= len(first)).astype(np.int64))
                encoded.facts.append(window)
                owners.append(number)
                places.append(_target(pieces, start, end, len(before)))
        known = all(one.answers is not None for one in examples)
        table = np.array(places, np.int64).reshape(-1, 2)
        targets = {"start": table[:, 0], "end": table[:, 1]} if known else {}
        return Encoded(encoded.ids, encoded.segments, np.array(owners, np.int64), targets, encoded.facts)

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Question]) -> list[Answered]:
        windows: list[list[Window]] = [[] for _ in examples]
        given: list[list[NDArray[np.floating]]] = [[] for _ in examples]
        for owner, window, row in zip(encoded.example, encoded.facts, scores, strict=True):
            windows[owner].append(window)
            given[owner].append(row)
        found = [best_spans(mine, rows, self.longest, self.candidates) for mine, rows in zip(windows, given, strict=True)]
        return [self._answered(one.context, *best) for one, best in zip(examples, found, strict=True)]

    def judge(self, answers: Sequence[Answered], examples: Sequence[Question]) -> dict[str, float]:
        """exact and f1, between 0 and 1, as the published scripts give them; questions whose answer is not known are left out.

        With no_answer also of the questions that have one and of those that have none, and the best that any threshold
        could give, with that threshold.
        """
        said, asked = _known(answers, examples)
        exact, f1 = self._scores([one.text for one in said], asked)
        judged = {"exact": float(exact.mean()), "f1": float(f1.mean())}
        if not self.no_answer:
            return judged
        there = np.array([bool(one.answers) for one in asked])
        for name, chosen in {"has_answer": there, "no_answer": ~there}.items():
            if chosen.any():
                judged |= {f"{name}_exact": float(exact[chosen].mean()), f"{name}_f1": float(f1[chosen].mean())}
        (best_exact, exact_at), (best_f1, f1_at) = self._best(said, asked, never=0.0)
        return judged | {
            "best_exact": best_exact,
            "best_exact_threshold": exact_at,
            "best_f1": best_f1,
            "best_f1_threshold": f1_at,
        }

    def each(
        self, answers: Sequence[Answered], examples: Sequence[Question]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """exact and f1 of every answer; the truths must be known."""
        return self._scores([one.text for one in answers], examples)

    def tuned(self, answers: Sequence[Answered], examples: Sequence[Question]) -> "Answering":
        """With the threshold that gives these answers, of a dev file, the best F1; unchanged without no_answer."""
        if not self.no_answer:
            return self
        said, asked = _known(answers, examples)
        lowest = min(one.no_answer for one in said) - 1
        return msgspec.structs.replace(self, threshold=self._best(said, asked, never=lowest)[1][1])

    def _windowed(self, offsets: NDArray[np.int64], first: int, room: int) -> list[tuple[tuple[int, int], Window]]:
        parts = windows(len(offsets), room, min(self.stride, room // 2))  # none is torn where windows meet
        parts = parts if self.long == "window" else parts[:1]
        owner = most_context(parts, len(offsets))
        return [(part, Window(first, offsets[slice(*part)], owner[slice(*part)] == n)) for n, part in enumerate(parts)]

    def _answered(self, context: str, spans: list[Span], null: float) -> Answered:
        found = [_cut(context, span) for span in spans]
        doubt = null - spans[0].score if spans else 0.0
        if not found or (self.no_answer and doubt > self.threshold):
            return Answered("", None, None, float(np.exp(null)), doubt, tuple(found))
        best = found[0]
        return Answered(best.text, best.start, best.end, best.score, doubt, tuple(found))

    def _scores(self, said: Sequence[str], asked: Sequence[Question]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        exact: Callable[[str, Sequence[str]], float] = cmrc.exact if self.scorer == "cmrc" else squad.exact
        f1: Callable[[str, Sequence[str]], float] = cmrc.f1 if self.scorer == "cmrc" else squad.f1
        if self.no_answer and self.scorer == "squad":
            exact, f1 = squad.exact_or_none, squad.f1_or_none
        pairs = [(text, one.answers) for text, one in zip(said, asked, strict=True)]
        return tuple(np.array([how(text, gold) if gold else float(not text) for text, gold in pairs]) for how in (exact, f1))  # type: ignore[return-value]

    def _best(self, said: Sequence[Answered], asked: Sequence[Question], never: float) -> list[tuple[float, float]]:
        """The best mean of exact and of f1, each with its threshold."""
        texts, nulls = [one.candidates[0].text if one.candidates else "" for one in said], [one.no_answer for one in said]
        there = [bool(one.answers) for one in asked]
        return [squad.best_threshold(list(kind), nulls, there, texts, never) for kind in self._scores(texts, asked)]


def _target(pieces: tuple[int, int] | None, start: int, end: int, first: int) -> tuple[int, int]:
    """Where an answer's first and last piece stand in the sequence of the window from `start` to `end`."""
    if pieces is None or pieces[0] < start or pieces[1] >= end:
        return 0, 0
    return first + pieces[0] - start, first + pieces[1] - start


def _cut(context: str, span: Span) -> Candidate:
    """Some tokenizers count the space before a word as part of it."""
    text = context[span.start : span.end]
    start = span.start + len(text) - len(text.lstrip())
    return Candidate(text.strip(), start, start + len(text.strip()), float(np.exp(span.score)))


def _known(answers: Sequence[Answered], examples: Sequence[Question]) -> tuple[list[Answered], list[Question]]:
    pairs = [(said, one) for said, one in zip(answers, examples, strict=True) if one.answers is not None]
    if not pairs:
        raise BadInput("no question has an answer to be judged by")
    return [said for said, _ in pairs], [one for _, one in pairs]
