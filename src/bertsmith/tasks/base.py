"""What a task is: examples to sequences of ids, a model's scores to answers, in numpy alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config import Count, Variant
from ..errors import BadInput
from ..tokenization.tokenizer import Tokenizer
from .special_tokens import NONE, Guides

Head = Literal["text", "token", "span"]
Scores = Sequence[NDArray[Any]] | NDArray[Any]
Long = Literal["truncate", "window", "hierarchical"]


class Joint(Variant, frozen=True):
    """[CLS] text [SEP] text_b [SEP]: one sequence, in which the two texts share the length."""


class Cross(Variant, frozen=True):
    """[CLS] text [SEP] and [CLS] text_b [SEP], each with the whole length; blocks of attention to the other join them."""

    blocks: Annotated[Count, "blocks in which each side attends to the other"] = 2


class Both(Variant, frozen=True):
    """[CLS] text [SEP] text_b [SEP] and the other way round, as GPT reads texts that may be swapped: what stands for each of
    the two sequences is added."""


Pair = Joint | Cross | Both


@dataclass(frozen=True, kw_only=True)
class Example:
    """One thing to learn from or to answer; each kind of task adds its own fields."""

    source: str = ""  # the file it was read from, and where in it: for messages
    line: int = 0
    guides: tuple[str, ...] = ()  # the names of its guide tokens, in the order of the task's template

    @property
    def place(self) -> str:
        return f"{self.source}, line {self.line:,}" if self.source else "an example"


@dataclass(frozen=True)
class Answer:
    """What a task says of one example; its fields are what `predict` writes."""


@dataclass(frozen=True)
class Encoded:
    """Sequences ready for a model, several per example where a text is windowed."""

    ids: list[NDArray[np.int64]]  # each [CLS] ... [SEP]
    segments: list[NDArray[np.int64]]  # 0/1, same lengths
    example: NDArray[np.int64]  # (sequences,) which example each belongs to
    targets: dict[str, NDArray[Any]] = field(default_factory=dict)  # what the loss needs; empty for unlabelled examples
    facts: list[Any] = field(default_factory=list)  # one per sequence, private to the task (offsets, windows) for decode

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(sequences,): where each ends when all of them lie one after another, as targets of tokens do."""
        return np.cumsum([len(ids) for ids in self.ids])

    def only(self, start: int, stop: int) -> "Encoded":
        """The sequences of the examples from `start` up to `stop`, which are counted from 0 then; without targets."""
        kept = np.flatnonzero((self.example >= start) & (self.example < stop))
        ids, segments, facts = ([some[n] for n in kept if some] for some in (self.ids, self.segments, self.facts))
        return Encoded(ids, segments, self.example[kept] - start, {}, facts)


class Task(Protocol):
    """What training, evaluation, the server and exported models share of a task."""

    @property
    def head(self) -> Head:
        """What the model must give: a row a sequence (sequences, outputs); a row a token, (length, outputs) for each
        sequence; or two numbers a token."""

    @property
    def outputs(self) -> int:
        """The width of the head's scores; 0 if the answer is made of the pooled vectors themselves, without a head."""

    def read(self, path: Path) -> Iterator[Any]:
        """Examples of a file; a bad row is named by file and line, or skipped and counted if the task says skip_bad."""

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, length: int) -> Encoded:
        """Sequences of at most `length` tokens; targets only where every example has its label."""

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Any]) -> list[Any]:
        """One answer an example, in order."""

    def judge(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Scores by name."""

    def fitted(self, examples: Sequence[Any]) -> "Task":
        """The same task with what it learns from training examples before training: its labels."""


@dataclass(frozen=True)
class Part:
    """Which window of its example a sequence is."""

    number: int
    of: int
    pooled: bool = False  # the model joins the windows of an example: one row of scores an example, not a sequence


def ids_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of each text, without special tokens."""
    return [encoding.ids for encoding in tokenizer.encode_all(texts, offsets=False)]


def windows(count: int, size: int, stride: int) -> list[tuple[int, int]]:
    """(start, end) of windows over `count` tokens, `stride` from one start to the next; every token is in one."""
    last = max(0, count - size)
    stride = min(stride, size)  # a longer one would leave tokens out
    return [(start, min(start + size, count)) for start in range(0, last + stride, stride)]


def shortened(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept: the longer loses from its end until both fit; of equals the second does."""
    excess = first + second - room
    if excess <= 0:
        return first, second
    gap = min(abs(first - second), excess)
    first, second = (first - gap, second) if first > second else (first, second - gap)
    rest = excess - gap
    return first - rest // 2, second - (rest + 1) // 2


def sequences(
    pairs: Sequence[tuple[str, str | None]], tokenizer: Tokenizer, length: int, long: Long = "truncate", stride: int = 256,
    guides: Sequence[Guides] | None = None,
) -> Encoded:  # fmt: skip
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP] with segments 0 and 1: one sequence a text, or one a window.

    Of a pair that is windowed, the longer text is; the other is whole up to half of the room there is. `guides` are put
    beside the texts of each, in every window.
    """
    if length < 8:
        raise BadInput(f"sequences of {length} tokens leave no room for a text; take a length of 8 or more")
    firsts = ids_of([first for first, _ in pairs], tokenizer)
    seconds = iter(ids_of([second for _, second in pairs if second is not None], tokenizer))
    guides = guides if guides is not None else [NONE] * len(pairs)
    parts = [
        _parts(first, None if second is None else next(seconds), guide.room(length, second is not None), long, stride)
        for first, (_, second), guide in zip(firsts, pairs, guides, strict=True)
    ]
    joined = [
        _joined(first, second, tokenizer, guide) for some, guide in zip(parts, guides, strict=True) for first, second in some
    ]
    owners = np.repeat(np.arange(len(parts)), [len(some) for some in parts]) if parts else np.zeros(0, np.int64)
    facts = [Part(number, len(some), long == "hierarchical") for some in parts for number in range(len(some))]
    return Encoded([ids for ids, _ in joined], [segments for _, segments in joined], owners, {}, facts)


def pooled(encoded: Encoded) -> bool:
    """The model gives a row of scores an example, not a sequence."""
    return bool(encoded.facts) and getattr(encoded.facts[0], "pooled", False)


def by_row(values: NDArray[Any], encoded: Encoded) -> NDArray[Any]:
    """What is known of each example, for each row of scores."""
    return values if pooled(encoded) else values[encoded.example]


def averaged(scores: Scores, encoded: Encoded, examples: int) -> NDArray[np.float64]:
    """One row an example, the mean over its windows; rows that a model pooled already stay as they are."""
    rows = np.asarray(scores, np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    wanted = examples if pooled(encoded) else len(encoded.ids)
    if len(rows) != wanted:
        raise ValueError(f"{len(rows)} rows of scores for {wanted} {'examples' if pooled(encoded) else 'sequences'}")
    if pooled(encoded):
        return rows
    sums = np.zeros((examples, rows.shape[1]))
    np.add.at(sums, encoded.example, rows)
    return sums / np.bincount(encoded.example, minlength=examples)[:, None]


def _parts(
    first: list[int], second: list[int] | None, room: int, long: Long, stride: int
) -> list[tuple[list[int], list[int] | None]]:
    """What each sequence of an example holds of its two texts."""
    if long == "truncate" or len(first) + len(second or ()) <= room:
        kept, kept_second = shortened(len(first), len(second or ()), room)
        return [(first[:kept], second if second is None else second[:kept_second])]
    if second is None:
        return [(first[start:end], None) for start, end in windows(len(first), room, stride)]
    if len(second) > len(first):
        return [(left, right) for right, left in _beside(second, first, room, stride)]
    return list(_beside(first, second, room, stride))


def _beside(longer: list[int], shorter: list[int], room: int, stride: int) -> Iterator[tuple[list[int], list[int]]]:
    shorter = shorter[: room // 2]
    for start, end in windows(len(longer), room - len(shorter), stride):
        yield longer[start:end], shorter


def _joined(
    first: list[int], second: list[int] | None, tokenizer: Tokenizer, guides: Guides
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids = [tokenizer.cls, *guides.first, *first]
    if second is None:
        ids += [*guides.last, tokenizer.sep]
        return np.array(ids, np.int64), np.zeros(len(ids), np.int64)
    ids.append(tokenizer.sep)
    whole_ids = np.array([*ids, *guides.second, *second, *guides.last, tokenizer.sep], np.int64)
    return whole_ids, (np.arange(len(whole_ids)) >= len(ids)).astype(np.int64)


def most_context(windows: Sequence[tuple[int, int]], count: int) -> NDArray[np.int64]:
    """For each place, the window with the most on its poorer side (BERT's rule; in a draw the longer one, then the first)."""
    best, owner = np.full(count, -1.0), np.zeros(count, np.int64)
    for number, (start, end) in enumerate(windows):
        places = np.arange(end - start)
        context = np.minimum(places, places[::-1]) + 0.01 * (end - start)
        better = context > best[start:end]
        best[start:end][better] = context[better]
        owner[start:end][better] = number
    return owner
