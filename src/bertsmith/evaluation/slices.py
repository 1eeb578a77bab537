"""Slice-based evaluation: scores of subsets of the examples, by length, gold label, unknown words and overlap."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import scores
from ..metrics.intervals import ConfidenceInterval
from ..metrics.results import MetricResult
from ..tasks import Task
from ..tasks.sequences import encode_texts
from ..tasks.slicing import SliceMasks
from ..tokenization.tokenizer import Tokenizer
from .evaluate import Evaluation

MIN_EXAMPLES = 20  # below this a score is mostly noise


@dataclass(frozen=True)
class Slice:
    """A subset of the examples with its score and 95% interval."""

    name: str
    count: int
    score: ConfidenceInterval

    def is_significant(self, overall: float) -> bool:
        """Whether the slice has at least MIN_EXAMPLES examples and its interval excludes the score of all examples."""
        return self.count >= MIN_EXAMPLES and (self.score.low > overall or self.score.high < overall)


@dataclass(frozen=True)
class Slicing:
    """A partition of the examples by one criterion; in multi-label tasks an example is in the slice of each of its labels."""

    by: str
    metric: str
    slices: list[Slice]


def compute_slices(evaluation: Evaluation, tokenizer: Tokenizer, max_length: int) -> list[Slicing]:
    """Slicings with at least two non-empty slices; `max_length` is the model's limit in tokens."""
    metric, result = evaluation.task.slice_metric(evaluation.metrics)
    slicer = ExampleSlicer(evaluation.task, evaluation.examples, tokenizer)
    criteria = {
        "length in tokens": slicer.by_length,
        "maximum length of the model": lambda: slicer.by_max_length(max_length),
        **slicer.by_target(),
        "number of [UNK] tokens": slicer.by_unk_count,
        "words split into subwords": slicer.by_split_words,
        "token overlap of the two texts": slicer.by_overlap,
    }
    slicings = [Slicing(by, metric, _score_slices(masks(), result)) for by, masks in criteria.items()]
    return [slicing for slicing in slicings if len(slicing.slices) > 1]


def find_weak_slices(slicings: Iterable[Slicing], overall: float, lower_is_better: bool = False) -> list[tuple[str, Slice]]:
    """(criterion, slice) of slices significantly worse than `overall`, by decreasing difference times count."""
    significant = [(slicing.by, part) for slicing in slicings for part in slicing.slices if part.is_significant(overall)]
    worse = [(by, part) for by, part in significant if (part.score.value > overall) == lower_is_better]
    return sorted(worse, key=lambda pair: -abs(pair[1].score.value - overall) * pair[1].count)


class ExampleSlicer:
    """Boolean masks of the examples by criteria that do not depend on predictions; texts are tokenized once."""

    def __init__(self, task: Task, examples: Sequence[Any], tokenizer: Tokenizer) -> None:
        self.task, self.examples, self.tokenizer = task, examples, tokenizer

    @cached_property
    def token_ids(self) -> list[list[list[int]]]:
        """Token ids of each text of each example."""
        texts = [example.texts for example in self.examples]
        unique_texts = list(dict.fromkeys(chain.from_iterable(texts)))
        encoded = dict(zip(unique_texts, encode_texts(unique_texts, self.tokenizer), strict=True))
        return [[encoded[text] for text in example_texts] for example_texts in texts]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(examples,): tokens of all texts of an example."""
        return np.array([sum(map(len, ids)) for ids in self.token_ids], np.int64)

    @cached_property
    def is_pair(self) -> bool:
        """Every example consists of two texts."""
        return self.task.head_type != "token" and all(len(ids) == 2 for ids in self.token_ids)

    def by_length(self) -> SliceMasks:
        """Bins of total length in tokens, with edges at powers of two from 16."""
        lengths = self.lengths
        edges = [0, *(2**n for n in range(4, 13) if 2**n < lengths.max()), int(lengths.max())]
        return [(f"{low + 1:,}–{high:,}" if low else f"up to {high:,}", (lengths > low - (not low)) & (lengths <= high))
                for low, high in pairwise(edges)]  # fmt: skip

    def by_max_length(self, max_length: int) -> SliceMasks:
        """Whether the example fits into `max_length` tokens, special tokens included."""
        longest = [self.task.sequence_length([len(ids) for ids in texts]) for texts in self.token_ids]
        return _max_length_masks(np.array(longest) <= max_length, max_length)

    def by_target(self) -> dict[str, Callable[[], SliceMasks]]:
        """Slices by the gold answer, with the name of the criterion in this task."""
        named = self.task.target_slices(self.examples, self.tokenizer)
        return {} if named is None else {named[0]: lambda: named[1]}

    def by_unk_count(self) -> SliceMasks:
        """By the number of [UNK] tokens."""
        count = np.array([sum(ids.count(self.tokenizer.unk_token_id) for ids in texts) for texts in self.token_ids])
        return [("none", count == 0), ("one", count == 1), ("two or more", count > 1)]

    def by_split_words(self) -> SliceMasks:
        """By the fraction of words split into several subwords: rare words, names, misspellings."""
        fraction = np.array([_split_word_fraction(texts, self.tokenizer.is_continuation) for texts in self.token_ids])
        return [("none", fraction == 0), ("up to 10%", (fraction > 0) & (fraction <= 0.1)),
                ("10–25%", (fraction > 0.1) & (fraction <= 0.25)), ("more than 25%", fraction > 0.25)]  # fmt: skip

    def by_overlap(self) -> SliceMasks:
        """Pairs by |A ∩ B| / min(|A|, |B|) of their sets of tokens."""
        if not self.is_pair:
            return []
        overlap = np.array([_overlap_fraction(*map(set, texts)) for texts in self.token_ids])
        edges = (-0.01, 0.25, 0.5, 0.75, 1.0)
        return [(f"{max(low, 0):.0%}–{high:.0%}", (overlap > low) & (overlap <= high)) for low, high in pairwise(edges)]


def _score_slices(masks: SliceMasks, result: MetricResult) -> list[Slice]:
    return [Slice(name, int(mask.sum()), _score_interval(result.subset(mask))) for name, mask in masks if mask.any()]


def _score_interval(result: MetricResult) -> ConfidenceInterval:
    """NaN for an entity F1 on sentences without gold entities."""
    if result.metric is scores.f1_from_counts and not result.references.any():
        return ConfidenceInterval(float("nan"), float("nan"), float("nan"))
    return result.compute_interval()


def _max_length_masks(fits: NDArray[np.bool_], max_length: int) -> SliceMasks:
    return [(f"up to {max_length:,} tokens", fits), (f"longer than {max_length:,} tokens", ~fits)]


def _split_word_fraction(token_ids: list[list[int]], is_continuation: NDArray[np.bool_]) -> float:
    """The first token of a text starts a word, whatever its continuation marker."""
    flags = [[False, *is_continuation[ids[1:]].tolist(), False] for ids in token_ids if ids]
    num_words = sum(text_flags[:-1].count(False) for text_flags in flags)
    return sum(after and not current for text_flags in flags for current, after in pairwise(text_flags)) / max(num_words, 1)


def _overlap_fraction(first: set[int], second: set[int]) -> float:
    return len(first & second) / max(min(len(first), len(second)), 1)
