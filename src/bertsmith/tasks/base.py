"""The interface of a task: encode examples to sequences of token ids, decode model outputs to predictions (numpy only).

`Task` is the protocol, `Example`, `EncodedExamples` and `Prediction` its data. `encode_pairs` builds [CLS] text [SEP] text_b
[SEP] sequences, truncated or in sliding windows; `average_windows` merges the outputs of windows again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..config import PosInt, Variant
from ..errors import UserError
from ..tokenization.tables import UTF8, locate
from ..tokenization.tokenizer import Tokenizer
from .special_tokens import NO_SPECIAL_TOKENS, SpecialTokenIds

V = TypeVar("V")

TaskHeadType = Literal["text", "token", "span"]
ModelOutputs = Sequence[NDArray[Any]] | NDArray[Any]
LongText = Literal["truncate", "window", "hierarchical"]


class JointPair(Variant, frozen=True, tag="joint"):
    """[CLS] text [SEP] text_b [SEP]: one sequence; both texts share `max_length`."""


class CrossAttentionPair(Variant, frozen=True, tag="cross"):
    """[CLS] text [SEP] and [CLS] text_b [SEP], up to `max_length` tokens each, combined by cross-attention blocks."""

    blocks: Annotated[PosInt, "number of cross-attention blocks in which each text attends to the other"] = 2


class BothOrdersPair(Variant, frozen=True, tag="both"):
    """[CLS] text [SEP] text_b [SEP] and the same with the texts swapped; the pooled vectors of both sequences are added.

    The encoding of similarity tasks in GPT (Radford et al. 2018, section 3.3).
    """


PairEncoding = JointPair | CrossAttentionPair | BothOrdersPair


@dataclass(frozen=True, kw_only=True)
class Example:
    """One input of a task, with its label if known; each task adds its own fields."""

    source: str = ""  # file it was read from (empty if none), for error messages
    line: int = 0
    id: str | int = ""  # field or column `id` of its row; empty if there is none
    special_tokens: tuple[str, ...] = ()  # special tokens filled in from the task's template, in its order

    @property
    def location(self) -> str:
        return locate(Path(self.source), self.line) if self.source else "an example"


@dataclass(frozen=True)
class Prediction:
    """Prediction for one example. `to_answer` gives what users see: in Python, in JSON lines and over HTTP."""

    def to_answer(self, top_k: int | None = None) -> dict[str, Any]:
        """The prediction as JSON-compatible values, by default its fields; `top_k` limits or adds alternatives."""
        if top_k is not None:
            raise UserError(f"top_k={top_k} is for masks, labels (classify) and candidate answers (answer); leave it out")
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}


@dataclass(frozen=True)
class EncodedExamples:
    """Model inputs: one sequence per example, or several where a long text is split into windows."""

    input_ids: list[NDArray[np.int64]]  # each [CLS] ... [SEP]
    token_type_ids: list[NDArray[np.int64]]  # 0/1, same lengths
    example_index: NDArray[np.int64]  # (sequences,) index of the example each belongs to
    targets: dict[str, NDArray[Any]] = field(default_factory=dict)  # inputs of the loss; empty if an example has no label
    metadata: list[Any] = field(default_factory=list)  # one per sequence, task-specific (offsets, windows), for `decode`

    @cached_property
    def seq_ends(self) -> NDArray[np.int64]:
        """(sequences,) end of each sequence in their concatenation, the layout of token-level targets."""
        return np.cumsum([len(ids) for ids in self.input_ids])

    def select_examples(self, start: int, stop: int) -> "EncodedExamples":
        """Sequences of examples start..stop (exclusive), with `example_index` starting at 0 again and without targets."""
        selected = np.flatnonzero((self.example_index >= start) & (self.example_index < stop))
        input_ids, token_type_ids, metadata = (
            [values[i] for i in selected if values] for values in (self.input_ids, self.token_type_ids, self.metadata)
        )
        return EncodedExamples(input_ids, token_type_ids, self.example_index[selected] - start, {}, metadata)


class Task(Protocol):
    """What training, evaluation, the server and exported models need of a task."""

    @property
    def head_type(self) -> TaskHeadType:
        """Output of the model: text, (sequences, num_outputs); token, (length, num_outputs) per sequence; span, start and end
        logits, (length, 2) per sequence."""

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the head; 0 if there is no head and predictions are computed from the pooled vectors."""

    def read(self, path: Path, encoding: str = UTF8) -> Iterator[Any]:
        """Examples of a file; an invalid row raises an error with file and line, or is skipped and counted with `skip_bad`."""

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """Sequences of at most `max_length` tokens; with targets only if every example has a label."""

    def decode(self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Any]) -> list[Any]:
        """One prediction per example, in order."""

    def compute_metrics(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Metric values by name."""

    def fit(self, examples: Sequence[Any]) -> "Task":
        """A copy of the task with what is derived from the training examples before training, such as its labels."""


class TableByTask(dict[type, V]):
    """Values by task type; a task that is not a key has the value of the class it derives from."""

    def __missing__(self, task_type: type) -> V:
        key = next((base for base in task_type.__mro__ if base in self), None)
        if key is None:
            raise KeyError(task_type)
        return self[key]


@dataclass(frozen=True)
class TextWindow:
    """Which window of its example a sequence is (index and count)."""

    number: int
    num_windows: int
    pooled: bool = False  # the model pools the windows of an example: one row of outputs per example, not per sequence


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each text, without special tokens."""
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, return_offsets=False)]


def sliding_windows(num_tokens: int, window_size: int, stride: int) -> list[tuple[int, int]]:
    """(start, end) of windows over `num_tokens` tokens, `stride` tokens between starts; they cover every token."""
    last = max(0, num_tokens - window_size)
    stride = min(stride, window_size)  # a larger stride would skip tokens
    return [(start, min(start + window_size, num_tokens)) for start in range(0, last + stride, stride)]


def max_context_window(windows: Sequence[tuple[int, int]], num_tokens: int) -> NDArray[np.int64]:
    """(tokens,) index of the window that gives each token the most context.

    Context is the smaller of the left and right token counts (BERT's `_check_is_max_context`); ties go to the longer
    window, then to the first.
    """
    max_context, best_window = np.full(num_tokens, -1.0), np.zeros(num_tokens, np.int64)
    for index, (start, end) in enumerate(windows):
        positions = np.arange(end - start)
        context = np.minimum(positions, positions[::-1]) + 0.01 * (end - start)
        better = context > max_context[start:end]
        max_context[start:end][better] = context[better]
        best_window[start:end][better] = index
    return best_window


def truncate_longest_first(first_length: int, second_length: int, max_tokens: int) -> tuple[int, int]:
    """Lengths of two texts after removing tokens from the end of the longer one until both fit (ties: the second text).

    The result of BERT's `_truncate_seq_pair`.
    """
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
    pairs: Sequence[tuple[str, str | None]],
    tokenizer: Tokenizer,
    max_length: int,
    long_text: LongText = "truncate",
    stride: int = 256,
    special_tokens: Sequence[SpecialTokenIds] | None = None,
) -> EncodedExamples:
    """[CLS] text [SEP], or [CLS] text [SEP] text_b [SEP] with token_type_ids 0 and 1: one sequence per text or per window.

    In a windowed pair the longer text is split; the shorter one is repeated in every window, truncated to half of the
    available tokens. `special_tokens` (one per pair) are inserted beside the texts, in every window.
    """
    if max_length < 8:
        raise UserError(f"max_length={max_length} leaves no room for a text; set 8 or more")
    first_ids = encode_texts([first for first, _ in pairs], tokenizer)
    second_ids = iter(encode_texts([second for _, second in pairs if second is not None], tokenizer))
    special_tokens = special_tokens if special_tokens is not None else [NO_SPECIAL_TOKENS] * len(pairs)
    windows = [
        _split_into_windows(
            first,
            None if second is None else next(second_ids),
            special.max_text_tokens(max_length, second is not None),
            long_text,
            stride,
        )
        for first, (_, second), special in zip(first_ids, pairs, special_tokens, strict=True)
    ]
    sequences = [
        _add_special_tokens(first, second, tokenizer, special)
        for example_windows, special in zip(windows, special_tokens, strict=True)
        for first, second in example_windows
    ]
    example_index = (
        np.repeat(np.arange(len(windows)), [len(example_windows) for example_windows in windows])
        if windows
        else np.zeros(0, np.int64)
    )
    metadata = [
        TextWindow(number, len(example_windows), long_text == "hierarchical")
        for example_windows in windows
        for number in range(len(example_windows))
    ]
    return EncodedExamples(
        [input_ids for input_ids, _ in sequences],
        [token_type_ids for _, token_type_ids in sequences],
        example_index,
        {},
        metadata,
    )


def is_pooled(encoded: EncodedExamples) -> bool:
    """Whether the model outputs one row per example instead of one per sequence."""
    return bool(encoded.metadata) and getattr(encoded.metadata[0], "pooled", False)


def expand_to_rows(values: NDArray[Any], encoded: EncodedExamples) -> NDArray[Any]:
    """Repeat per-example values (examples, ...) for each row of model outputs."""
    return values if is_pooled(encoded) else values[encoded.example_index]


def average_windows(outputs: ModelOutputs, encoded: EncodedExamples, num_examples: int) -> NDArray[np.float64]:
    """(examples, outputs): mean of the outputs over the windows of an example; unchanged if the model pooled them already."""
    rows = np.asarray(outputs, np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    num_expected = num_examples if is_pooled(encoded) else len(encoded.input_ids)
    if len(rows) != num_expected:
        raise ValueError(f"{len(rows)} rows of outputs for {num_expected} {'examples' if is_pooled(encoded) else 'sequences'}")
    if is_pooled(encoded):
        return rows
    sums = np.zeros((num_examples, rows.shape[1]))
    np.add.at(sums, encoded.example_index, rows)
    return sums / np.bincount(encoded.example_index, minlength=num_examples)[:, None]


def _split_into_windows(
    first: list[int], second: list[int] | None, max_tokens: int, long_text: LongText, stride: int
) -> list[tuple[list[int], list[int] | None]]:
    """The token ids of both texts in each sequence of an example."""
    if long_text == "truncate" or len(first) + len(second or ()) <= max_tokens:
        first_length, second_length = truncate_longest_first(len(first), len(second or ()), max_tokens)
        return [(first[:first_length], second if second is None else second[:second_length])]
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
    pair_ids = np.array(
        [*ids, *special_tokens.before_second, *second, *special_tokens.after_last, tokenizer.sep_token_id], np.int64
    )
    return pair_ids, (np.arange(len(pair_ids)) >= len(ids)).astype(np.int64)
