"""What a task is: examples to sequences of ids, a model's scores to answers, in numpy alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config import PosInt, Variant
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .special_tokens import NO_SPECIAL_TOKENS, SpecialTokenIds

TaskHeadType = Literal["text", "token", "span"]
ModelOutputs = Sequence[NDArray[Any]] | NDArray[Any]
LongText = Literal["truncate", "window", "hierarchical"]


class JointPair(Variant, frozen=True, tag="joint"):
    """[CLS] text [SEP] text_b [SEP]: one sequence, in which the two texts share the length."""


class CrossAttentionPair(Variant, frozen=True, tag="cross"):
    """[CLS] text [SEP] and [CLS] text_b [SEP], each with the whole length; blocks of attention to the other join them."""

    blocks: Annotated[PosInt, "blocks in which each side attends to the other"] = 2


class BothOrdersPair(Variant, frozen=True, tag="both"):
    """[CLS] text [SEP] text_b [SEP] and the other way round, as GPT reads texts that may be swapped: what stands for each of
    the two sequences is added."""


PairEncoding = JointPair | CrossAttentionPair | BothOrdersPair


@dataclass(frozen=True, kw_only=True)
class Example:
    """One thing to learn from or to answer; each kind of task adds its own fields."""

    source: str = ""  # the file it was read from, and where in it: for messages
    line: int = 0
    guides: tuple[str, ...] = ()  # the names of its guide tokens, in the order of the task's template

    @property
    def location(self) -> str:
        return f"{self.source}, line {self.line:,}" if self.source else "an example"


@dataclass(frozen=True)
class Prediction:
    """What a task says of one example; its fields are what `predict` writes."""


@dataclass(frozen=True)
class EncodedExamples:
    """Sequences ready for a model, several per example where a text is windowed."""

    input_ids: list[NDArray[np.int64]]  # each [CLS] ... [SEP]
    token_type_ids: list[NDArray[np.int64]]  # 0/1, same lengths
    example_index: NDArray[np.int64]  # (sequences,) which example each belongs to
    targets: dict[str, NDArray[Any]] = field(default_factory=dict)  # what the loss needs; empty for unlabelled examples
    metadata: list[Any] = field(default_factory=list)  # one per sequence, private to the task (offsets, windows) for decode

    @cached_property
    def seq_ends(self) -> NDArray[np.int64]:
        """(sequences,): where each ends when all of them lie one after another, as targets of tokens do."""
        return np.cumsum([len(ids) for ids in self.input_ids])

    def select_examples(self, start: int, stop: int) -> "EncodedExamples":
        """The sequences of the examples from `start` up to `stop`, which are counted from 0 then; without targets."""
        kept = np.flatnonzero((self.example_index >= start) & (self.example_index < stop))
        ids, segments, facts = (
            [some[n] for n in kept if some] for some in (self.input_ids, self.token_type_ids, self.metadata)
        )
        return EncodedExamples(ids, segments, self.example_index[kept] - start, {}, facts)


class Task(Protocol):
    """What training, evaluation, the server and exported models share of a task."""

    @property
    def head_type(self) -> TaskHeadType:
        """What the model must give: a row a sequence (sequences, outputs); a row a token, (length, outputs) for each
        sequence; or two numbers a token."""

    @property
    def num_outputs(self) -> int:
        """The width of the head's scores; 0 if the answer is made of the pooled vectors themselves, without a head."""

    def read(self, path: Path) -> Iterator[Any]:
        """Examples of a file; a bad row is named by file and line, or skipped and counted if the task says skip_bad."""

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """Sequences of at most `length` tokens; targets only where every example has its label."""

    def decode(self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Any]) -> list[Any]:
        """One answer an example, in order."""

    def compute_metrics(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Scores by name."""

    def fit(self, examples: Sequence[Any]) -> "Task":
        """The same task with what it learns from training examples before training: its labels."""


@dataclass(frozen=True)
class TextWindow:
    """Which window of its example a sequence is."""

    number: int
    num_windows: int
    pooled: bool = False  # the model joins the windows of an example: one row of scores an example, not a sequence


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of each text, without special tokens."""
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, return_offsets=False)]


def sliding_windows(num_tokens: int, window_size: int, stride: int) -> list[tuple[int, int]]:
    """(start, end) of windows over `count` tokens, `stride` from one start to the next; every token is in one."""
    last = max(0, num_tokens - window_size)
    stride = min(stride, window_size)  # a longer one would leave tokens out
    return [(start, min(start + window_size, num_tokens)) for start in range(0, last + stride, stride)]


def truncate_longest_first(first_length: int, second_length: int, max_tokens: int) -> tuple[int, int]:
    """How many tokens of two texts are kept: the longer loses from its end until both fit; of equals the second does."""
    excess = first_length + second_length - max_tokens
    if excess <= 0:
        return first_length, second_length
    gap = min(abs(first_length - second_length), excess)
    first_length, second_length = (
        (first_length - gap, second_length) if first_length > second_length else (first_length, second_length - gap)
    )
    rest = excess - gap
    return first_length - rest // 2, second_length - (rest + 1) // 2


def encode_pairs(
    pairs: Sequence[tuple[str, str | None]], tokenizer: Tokenizer, max_length: int, long_text: LongText = "truncate", stride: int = 256,
    special_tokens: Sequence[SpecialTokenIds] | None = None,
) -> EncodedExamples:  # fmt: skip
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP] with segments 0 and 1: one sequence a text, or one a window.

    Of a pair that is windowed, the longer text is; the other is whole up to half of the room there is. `guides` are put
    beside the texts of each, in every window.
    """
    if max_length < 8:
        raise UserError(f"sequences of {max_length} tokens leave no room for a text; take a length of 8 or more")
    firsts = encode_texts([first for first, _ in pairs], tokenizer)
    seconds = iter(encode_texts([second for _, second in pairs if second is not None], tokenizer))
    special_tokens = special_tokens if special_tokens is not None else [NO_SPECIAL_TOKENS] * len(pairs)
    parts = [
        _split_into_windows(
            first,
            None if second is None else next(seconds),
            guide.max_text_tokens(max_length, second is not None),
            long_text,
            stride,
        )
        for first, (_, second), guide in zip(firsts, pairs, special_tokens, strict=True)
    ]
    joined = [
        _add_special_tokens(first, second, tokenizer, guide)
        for some, guide in zip(parts, special_tokens, strict=True)
        for first, second in some
    ]
    owners = np.repeat(np.arange(len(parts)), [len(some) for some in parts]) if parts else np.zeros(0, np.int64)
    facts = [TextWindow(number, len(some), long_text == "hierarchical") for some in parts for number in range(len(some))]
    return EncodedExamples([ids for ids, _ in joined], [segments for _, segments in joined], owners, {}, facts)


def is_pooled(encoded: EncodedExamples) -> bool:
    """The model gives a row of scores an example, not a sequence."""
    return bool(encoded.metadata) and getattr(encoded.metadata[0], "pooled", False)


def expand_to_rows(values: NDArray[Any], encoded: EncodedExamples) -> NDArray[Any]:
    """What is known of each example, for each row of scores."""
    return values if is_pooled(encoded) else values[encoded.example_index]


def average_windows(outputs: ModelOutputs, encoded: EncodedExamples, num_examples: int) -> NDArray[np.float64]:
    """One row an example, the mean over its windows; rows that a model pooled already stay as they are."""
    rows = np.asarray(outputs, np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    wanted = num_examples if is_pooled(encoded) else len(encoded.input_ids)
    if len(rows) != wanted:
        raise ValueError(f"{len(rows)} rows of scores for {wanted} {'examples' if is_pooled(encoded) else 'sequences'}")
    if is_pooled(encoded):
        return rows
    sums = np.zeros((num_examples, rows.shape[1]))
    np.add.at(sums, encoded.example_index, rows)
    return sums / np.bincount(encoded.example_index, minlength=num_examples)[:, None]


def _split_into_windows(
    first: list[int], second: list[int] | None, max_tokens: int, long_text: LongText, stride: int
) -> list[tuple[list[int], list[int] | None]]:
    """What each sequence of an example holds of its two texts."""
    if long_text == "truncate" or len(first) + len(second or ()) <= max_tokens:
        kept, kept_second = truncate_longest_first(len(first), len(second or ()), max_tokens)
        return [(first[:kept], second if second is None else second[:kept_second])]
    if second is None:
        return [(first[start:end], None) for start, end in sliding_windows(len(first), max_tokens, stride)]
    if len(second) > len(first):
        return [(left, right) for right, left in _window_longer(second, first, max_tokens, stride)]
    return list(_window_longer(first, second, max_tokens, stride))


def _window_longer(
    longer: list[int], shorter: list[int], max_tokens: int, stride: int
) -> Iterator[tuple[list[int], list[int]]]:
    shorter = shorter[: max_tokens // 2]
    for start, end in sliding_windows(len(longer), max_tokens - len(shorter), stride):
        yield longer[start:end], shorter


def _add_special_tokens(
    first: list[int], second: list[int] | None, tokenizer: Tokenizer, special_tokens: SpecialTokenIds
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids = [tokenizer.cls_token_id, *special_tokens.before_first, *first]
    if second is None:
        ids += [*special_tokens.after_last, tokenizer.sep_token_id]
        return np.array(ids, np.int64), np.zeros(len(ids), np.int64)
    ids.append(tokenizer.sep_token_id)
    whole_ids = np.array(
        [*ids, *special_tokens.before_second, *second, *special_tokens.after_last, tokenizer.sep_token_id], np.int64
    )
    return whole_ids, (np.arange(len(whole_ids)) >= len(ids)).astype(np.int64)


def max_context_window(windows: Sequence[tuple[int, int]], num_tokens: int) -> NDArray[np.int64]:
    """For each place, the window with the most on its poorer side (BERT's rule; in a draw the longer one, then the first)."""
    best, owner = np.full(num_tokens, -1.0), np.zeros(num_tokens, np.int64)
    for number, (start, end) in enumerate(windows):
        places = np.arange(end - start)
        context = np.minimum(places, places[::-1]) + 0.01 * (end - start)
        better = context > best[start:end]
        best[start:end][better] = context[better]
        owner[start:end][better] = number
    return owner
