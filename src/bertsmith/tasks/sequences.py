"""Token sequences of texts: [CLS] text [SEP] text_b [SEP], truncated or in sliding windows.

`encode_pairs` builds the sequences; `average_windows` merges the outputs of windows again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, LongText, ModelOutputs
from .special_tokens import NO_SPECIAL_TOKENS, SpecialTokenIds


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
