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
from ..metrics.intervals import ConfidenceInterval
from ..tasks import (
    MultipleChoice,
    QuestionAnswering,
    TaskConfig,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from ..tasks.base import encode_texts
from ..tasks.scorers.conlleval import get_entities
from ..tokenization.tokenizer import Tokenizer
from .evaluate import Evaluation
from .measures import MetricResult, choose_slice_metric

MIN_EXAMPLES = 20  # examples: of fewer, a score is mostly luck
MAX_LABELS = 24  # labels with a slice of their own; the rest share one

SliceMasks = list[tuple[str, NDArray[np.bool_]]]


@dataclass(frozen=True)
class Slice:
    name: str
    count: int
    score: ConfidenceInterval

    def is_significant(self, overall: float) -> bool:
        """More than chance may have made it better or worse than all examples together; of few it is never said."""
        return self.count >= MIN_EXAMPLES and (self.score.low > overall or self.score.high < overall)


@dataclass(frozen=True)
class Slicing:
    """One way to part the examples: each is in one slice (in one for each of its labels, where it may have many)."""

    by: str
    metric: str
    slices: list[Slice]


def compute_slices(evaluation: Evaluation, tokenizer: Tokenizer, max_length: int) -> list[Slicing]:
    """Every way that makes two parts or more; `length` is the model's."""
    metric, measure = choose_slice_metric(evaluation.task, evaluation.metrics)
    facts = ExampleSlicer(evaluation.task, evaluation.examples, tokenizer)
    ways = {
        "length in tokens": facts.by_length,
        "room in the model": lambda: facts.by_truncation(max_length),
        **facts.by_target(),
        "unknown words": facts.by_unk_count,
        "words in several pieces": facts.by_split_words,
        "words in common": facts.by_overlap,
    }
    cuts = [Slicing(by, metric, _score_slices(parts(), measure)) for by, parts in ways.items()]
    return [cut for cut in cuts if len(cut.slices) > 1]


def find_weak_slices(slicings: Iterable[Slicing], overall: float, lower_is_better: bool = False) -> list[tuple[str, Slice]]:
    """Slices that are worse than all together by more than chance, those that cost most first."""
    found = [(cut.by, one) for cut in slicings for one in cut.slices if one.is_significant(overall)]
    worse = [(by, one) for by, one in found if (one.score.value > overall) == lower_is_better]
    return sorted(worse, key=lambda pair: -abs(pair[1].score.value - overall) * pair[1].count)


class ExampleSlicer:
    """What examples are, apart from how they were answered; tokenised once."""

    def __init__(self, task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer) -> None:
        self.task, self.examples, self.tokenizer = task, examples, tokenizer

    @cached_property
    def token_ids(self) -> list[list[list[int]]]:
        """The ids of each text of each example."""
        written = [_example_texts(one) for one in self.examples]
        kinds = list(dict.fromkeys(chain.from_iterable(written)))
        known = dict(zip(kinds, encode_texts(kinds, self.tokenizer), strict=True))
        return [[known[text] for text in some] for some in written]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([sum(map(len, some)) for some in self.token_ids], np.int64)

    @cached_property
    def is_pair(self) -> bool:
        """Every example is two texts."""
        return not isinstance(self.task, TokenClassification | MultipleChoice) and all(
            len(some) == 2 for some in self.token_ids
        )

    def by_length(self) -> SliceMasks:
        edges = [0, *(2**n for n in range(4, 13) if 2**n < self.lengths.max()), int(self.lengths.max())]
        return [(f"{low + 1:,}–{high:,}" if low else f"up to {high:,}", (self.lengths > low - (not low)) & (self.lengths <= high))
                for low, high in pairwise(edges)]  # fmt: skip

    def by_truncation(self, max_length: int) -> SliceMasks:
        """Whether all of it fits; tokens that stand between texts are counted in."""
        if isinstance(self.task, TextSimilarity):
            return _truncation_masks(np.array([max(map(len, some)) for some in self.token_ids]) <= max_length - 2, max_length)
        if isinstance(self.task, MultipleChoice):
            longest = [len(some[0]) + max(map(len, some[1:])) for some in self.token_ids]
            return _truncation_masks(np.array(longest) <= max_length - 3, max_length)
        return _truncation_masks(self.lengths <= max_length - 2 - self.is_pair, max_length)

    def by_target(self) -> dict[str, Callable[[], SliceMasks]]:
        """Parts by what the right answer is, named by what it is in this kind of task."""
        named: dict[type, tuple[str, Callable[[], SliceMasks]]] = {
            TextClassification: ("label", self._label_masks),
            TextRegression: ("true value", self._quartile_masks),
            TokenClassification: ("entities in it", self._entity_count_masks),
            MultipleChoice: ("options", lambda: _group_masks(f"{len(one.options)}" for one in self.examples)),
            QuestionAnswering: ("answer", self._answer_length_masks),
        }
        return dict([named[type(self.task)]]) if type(self.task) in named else {}

    def by_unk_count(self) -> SliceMasks:
        """How many words the tokenizer has no pieces for."""
        count = np.array([sum(ids.count(self.tokenizer.unk_token_id) for ids in some) for some in self.token_ids])
        return [("none", count == 0), ("one", count == 1), ("two or more", count > 1)]

    def by_split_words(self) -> SliceMasks:
        """The share of words that are no single piece: rare ones, names, misspellings."""
        share = np.array([_split_word_fraction(some, self.tokenizer.is_continuation) for some in self.token_ids])
        return [("none", share == 0), ("up to 10%", (share > 0) & (share <= 0.1)),
                ("10–25%", (share > 0.1) & (share <= 0.25)), ("more than 25%", share > 0.25)]  # fmt: skip

    def by_overlap(self) -> SliceMasks:
        """Of a pair, which share of the shorter text's kinds of tokens the other has too."""
        if not self.is_pair:
            return []
        share = np.array([_overlap_fraction(*map(set, some)) for some in self.token_ids])
        edges = (-0.01, 0.25, 0.5, 0.75, 1.0)
        return [(f"{max(low, 0):.0%}–{high:.0%}", (share > low) & (share <= high)) for low, high in pairwise(edges)]

    def _label_masks(self) -> SliceMasks:
        assert isinstance(self.task, TextClassification)
        if self.task.many:
            true = self.task.label_matrices([], self.examples)[1]
            parts = [(label, true[:, number]) for number, label in enumerate(self.task.labels)]
            none = true.sum(-1) == 0
            return [*sorted(parts, key=lambda part: -part[1].sum())[:MAX_LABELS], ("no label", none)]
        return _group_masks(one.label for one in self.examples)

    def _quartile_masks(self) -> SliceMasks:
        values = np.array([one.label for one in self.examples])
        edges = np.unique(np.quantile(values, np.linspace(0, 1, 5)))
        return [(f"{low:.4g} to {high:.4g}", (values > low if number else values >= low) & (values <= high))
                for number, (low, high) in enumerate(pairwise(edges))]  # fmt: skip

    def _entity_count_masks(self) -> SliceMasks:
        count = np.array([len(get_entities(one.tags)) for one in self.examples])
        return [("none", count == 0), ("one", count == 1), ("two or three", (count == 2) | (count == 3)),
                ("four or more", count > 3)]  # fmt: skip

    def _answer_length_masks(self) -> SliceMasks:
        gold = encode_texts([one.answers[0] if one.answers else "" for one in self.examples], self.tokenizer)
        size = np.array([len(ids) for ids in gold])
        return [("no answer", size == 0), ("1–2 tokens", (size > 0) & (size <= 2)), ("3–5 tokens", (size > 2) & (size <= 5)),
                ("6–10 tokens", (size > 5) & (size <= 10)), ("longer", size > 10)]  # fmt: skip


def _score_slices(masks: SliceMasks, result: MetricResult) -> list[Slice]:
    return [Slice(name, int(chosen.sum()), _score_interval(result.subset(chosen))) for name, chosen in masks if chosen.any()]


def _score_interval(result: MetricResult) -> ConfidenceInterval:
    """F1 where there is nothing to be found is no score."""
    if result.metric is scores.f1_from_counts and not result.references.any():
        return ConfidenceInterval(float("nan"), float("nan"), float("nan"))
    return result.compute_interval()


def _truncation_masks(fits: NDArray[np.bool_], max_length: int) -> SliceMasks:
    return [("fits", fits), (f"longer than {max_length:,} tokens", ~fits)]


def _group_masks(names: Iterable[str]) -> SliceMasks:
    """A part for each of the most frequent names, most frequent first, and one for all others."""
    given = np.array(list(names), dtype=object)
    often = [name for name, _ in Counter(given.tolist()).most_common(MAX_LABELS)]
    return [(name, given == name) for name in often] + [("other", ~np.isin(given.astype(str), often))]


def _example_texts(example: Any) -> list[str]:
    if hasattr(example, "tokens"):
        return list(example.tokens)  # a text each: Chinese has no spaces to join by
    if hasattr(example, "options"):
        return [example.context, *(f"{example.question or ''} {option}" for option in example.options)]
    if hasattr(example, "context"):
        return [example.question, example.context]
    second = getattr(example, "text_b", None)
    return [example.text] + ([second] if second is not None else [])


def _split_word_fraction(token_ids: list[list[int]], is_continuation: NDArray[np.bool_]) -> float:
    """A text's first piece begins a word, marked or not."""
    flags = [[False, *is_continuation[ids[1:]].tolist(), False] for ids in token_ids if ids]
    words = sum(one[:-1].count(False) for one in flags)
    return sum(after and not here for one in flags for here, after in pairwise(one)) / max(words, 1)


def _overlap_fraction(first: set[int], second: set[int]) -> float:
    return len(first & second) / max(min(len(first), len(second)), 1)
