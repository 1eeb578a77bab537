"""Scores of parts of the examples: by length, label, unknown words and what a pair has in common."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import scores
from ..metrics.intervals import Interval
from ..tasks import Answering, Choose, Classify, Regress, Similar, Tag, TaskConfig
from ..tasks.base import ids_of
from ..tasks.scorers.conlleval import entities
from ..tokenization.tokenizer import Tokenizer
from .evaluate import Judged
from .measures import Measure, sliced

FEW = 20  # examples: of fewer, a score is mostly luck
MOST = 24  # labels with a slice of their own; the rest share one

Parts = list[tuple[str, NDArray[np.bool_]]]


@dataclass(frozen=True)
class Slice:
    name: str
    count: int
    score: Interval

    def apart(self, whole: float) -> bool:
        """More than chance may have made it better or worse than all examples together; of few it is never said."""
        return self.count >= FEW and (self.score.low > whole or self.score.high < whole)


@dataclass(frozen=True)
class Cut:
    """One way to part the examples: each is in one slice (in one for each of its labels, where it may have many)."""

    by: str
    metric: str
    slices: list[Slice]


def slices(judged: Judged, tokenizer: Tokenizer, length: int) -> list[Cut]:
    """Every way that makes two parts or more; `length` is the model's."""
    metric, measure = sliced(judged.task, judged.measures)
    facts = Facts(judged.task, judged.examples, tokenizer)
    ways = {
        "length in tokens": facts.by_length,
        "room in the model": lambda: facts.by_room(length),
        **facts.by_truth(),
        "unknown words": facts.by_unknown,
        "words in several pieces": facts.by_broken,
        "words in common": facts.by_overlap,
    }
    cuts = [Cut(by, metric, _slices(parts(), measure)) for by, parts in ways.items()]
    return [cut for cut in cuts if len(cut.slices) > 1]


def weakest(cuts: Iterable[Cut], whole: float, falls: bool = False) -> list[tuple[str, Slice]]:
    """Slices that are worse than all together by more than chance, those that cost most first."""
    found = [(cut.by, one) for cut in cuts for one in cut.slices if one.apart(whole)]
    worse = [(by, one) for by, one in found if (one.score.value > whole) == falls]
    return sorted(worse, key=lambda pair: -abs(pair[1].score.value - whole) * pair[1].count)


class Facts:
    """What examples are, apart from how they were answered; tokenised once."""

    def __init__(self, task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer) -> None:
        self.task, self.examples, self.tokenizer = task, examples, tokenizer

    @cached_property
    def texts(self) -> list[list[list[int]]]:
        """The ids of each text of each example."""
        written = [_texts(one) for one in self.examples]
        kinds = list(dict.fromkeys(chain.from_iterable(written)))
        known = dict(zip(kinds, ids_of(kinds, self.tokenizer), strict=True))
        return [[known[text] for text in some] for some in written]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([sum(map(len, some)) for some in self.texts], np.int64)

    @cached_property
    def paired(self) -> bool:
        """Every example is two texts."""
        return not isinstance(self.task, Tag | Choose) and all(len(some) == 2 for some in self.texts)

    def by_length(self) -> Parts:
        edges = [0, *(2**n for n in range(4, 13) if 2**n < self.sizes.max()), int(self.sizes.max())]
        return [(f"{low + 1:,}–{high:,}" if low else f"up to {high:,}", (self.sizes > low - (not low)) & (self.sizes <= high))
                for low, high in pairwise(edges)]  # fmt: skip

    def by_room(self, length: int) -> Parts:
        """Whether all of it fits; tokens that stand between texts are counted in."""
        if isinstance(self.task, Similar):
            return _fitting(np.array([max(map(len, some)) for some in self.texts]) <= length - 2, length)
        if isinstance(self.task, Choose):
            longest = [len(some[0]) + max(map(len, some[1:])) for some in self.texts]
            return _fitting(np.array(longest) <= length - 3, length)
        return _fitting(self.sizes <= length - 2 - self.paired, length)

    def by_truth(self) -> dict[str, Callable[[], Parts]]:
        """Parts by what the right answer is, named by what it is in this kind of task."""
        named: dict[type, tuple[str, Callable[[], Parts]]] = {
            Classify: ("label", self._labels),
            Regress: ("true value", self._quarters),
            Tag: ("entities in it", self._entities),
            Choose: ("options", lambda: _grouped(f"{len(one.options)}" for one in self.examples)),
            Answering: ("answer", self._answers),
        }
        return dict([named[type(self.task)]]) if type(self.task) in named else {}

    def by_unknown(self) -> Parts:
        """How many words the tokenizer has no pieces for."""
        count = np.array([sum(ids.count(self.tokenizer.unk) for ids in some) for some in self.texts])
        return [("none", count == 0), ("one", count == 1), ("two or more", count > 1)]

    def by_broken(self) -> Parts:
        """The share of words that are no single piece: rare ones, names, misspellings."""
        share = np.array([_broken(some, self.tokenizer.continues) for some in self.texts])
        return [("none", share == 0), ("up to 10%", (share > 0) & (share <= 0.1)),
                ("10–25%", (share > 0.1) & (share <= 0.25)), ("more than 25%", share > 0.25)]  # fmt: skip

    def by_overlap(self) -> Parts:
        """Of a pair, which share of the shorter text's kinds of tokens the other has too."""
        if not self.paired:
            return []
        share = np.array([_common(*map(set, some)) for some in self.texts])
        edges = (-0.01, 0.25, 0.5, 0.75, 1.0)
        return [(f"{max(low, 0):.0%}–{high:.0%}", (share > low) & (share <= high)) for low, high in pairwise(edges)]

    def _labels(self) -> Parts:
        assert isinstance(self.task, Classify)
        if self.task.many:
            true = self.task.held([], self.examples)[1]
            parts = [(label, true[:, number]) for number, label in enumerate(self.task.labels)]
            none = true.sum(-1) == 0
            return [*sorted(parts, key=lambda part: -part[1].sum())[:MOST], ("no label", none)]
        return _grouped(one.label for one in self.examples)

    def _quarters(self) -> Parts:
        values = np.array([one.label for one in self.examples])
        edges = np.unique(np.quantile(values, np.linspace(0, 1, 5)))
        return [(f"{low:.4g} to {high:.4g}", (values > low if number else values >= low) & (values <= high))
                for number, (low, high) in enumerate(pairwise(edges))]  # fmt: skip

    def _entities(self) -> Parts:
        count = np.array([len(entities(one.tags)) for one in self.examples])
        return [("none", count == 0), ("one", count == 1), ("two or three", (count == 2) | (count == 3)),
                ("four or more", count > 3)]  # fmt: skip

    def _answers(self) -> Parts:
        gold = ids_of([one.answers[0] if one.answers else "" for one in self.examples], self.tokenizer)
        size = np.array([len(ids) for ids in gold])
        return [("no answer", size == 0), ("1–2 tokens", (size > 0) & (size <= 2)), ("3–5 tokens", (size > 2) & (size <= 5)),
                ("6–10 tokens", (size > 5) & (size <= 10)), ("longer", size > 10)]  # fmt: skip


def _slices(parts: Parts, measure: Measure) -> list[Slice]:
    return [Slice(name, int(chosen.sum()), _score(measure.of(chosen))) for name, chosen in parts if chosen.any()]


def _score(measure: Measure) -> Interval:
    """F1 where there is nothing to be found is no score."""
    if measure.metric is scores.f1_counted and not measure.truths.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    return measure.around()


def _fitting(fits: NDArray[np.bool_], length: int) -> Parts:
    return [("fits", fits), (f"longer than {length:,} tokens", ~fits)]


def _grouped(names: Iterable[str]) -> Parts:
    """A part for each of the most frequent names, most frequent first, and one for all others."""
    given = np.array(list(names), dtype=object)
    often = [name for name, _ in Counter(given.tolist()).most_common(MOST)]
    return [(name, given == name) for name in often] + [("other", ~np.isin(given.astype(str), often))]


def _texts(example: Any) -> list[str]:
    if hasattr(example, "tokens"):
        return list(example.tokens)  # a text each: Chinese has no spaces to join by
    if hasattr(example, "options"):
        return [example.context, *(f"{example.question or ''} {option}" for option in example.options)]
    if hasattr(example, "context"):
        return [example.question, example.context]
    second = getattr(example, "text_b", None)
    return [example.text] + ([second] if second is not None else [])


def _broken(texts: list[list[int]], continues: NDArray[np.bool_]) -> float:
    """A text's first piece begins a word, marked or not."""
    flags = [[False, *continues[ids[1:]].tolist(), False] for ids in texts if ids]
    words = sum(one[:-1].count(False) for one in flags)
    return sum(after and not here for one in flags for here, after in pairwise(one)) / max(words, 1)


def _common(first: set[int], second: set[int]) -> float:
    return len(first & second) / max(min(len(first), len(second)), 1)
