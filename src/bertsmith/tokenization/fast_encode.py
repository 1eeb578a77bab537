"""Fast batch encoding: each distinct run of characters is encoded once by the `tokenizers` library and then cached.

A run is a substring that the tokenizer never joins with its neighbours, so that encoding runs one by one gives the same
ids as encoding the whole text. The run pattern depends on the tokenizer's pre-tokenizer; where no such boundary is known,
a run is a whole line.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tokenizer import Tokenizer

# Characters that BERT's pre-tokenizer always makes a word of their own: punctuation and Chinese characters. Leaving some
# out costs time, not correctness: the tokenizer then splits them inside a longer run.
PUNCTUATION = (
    r"!-/:-@\[-`{-~"
    r"\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u2010-\u2027\u2030-\u2043\u2045-\u2051\u2053-\u205e"
    r"\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff03\uff05-\uff0a\uff0c-\uff0f\uff1a\uff1b\uff1f\uff20"
    r"\uff3b-\uff3d\uff3f\uff5b\uff5d"
)
SINGLE_CHAR_WORDS = PUNCTUATION + r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WHITESPACE = r" \t\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # white space except newline
BERT_RUN_PATTERN = re.compile(rf"\n|[{SINGLE_CHAR_WORDS}]|[^\n{WHITESPACE}{SINGLE_CHAR_WORDS}]+")
# For a Chinese segmenter, which splits the text between punctuation into words.
CLAUSE_PATTERN = re.compile(rf"\n|[{PUNCTUATION}]|[^\n{WHITESPACE}{PUNCTUATION}]+")
# ByteLevel joins a space with the word after it, never with the text before it.
BYTE_LEVEL_RUN_PATTERN = re.compile(rf"\n|[{WHITESPACE}\v\f\x85]*[^\n{WHITESPACE}\v\f\x85]+|[{WHITESPACE}\v\f\x85]+")
LINE_PATTERN = re.compile(r"\n|[^\n]+")


class CachedEncoder:
    """Encodes blocks of lines. The cache is cleared when it holds more than `max_cached_runs` runs."""

    def __init__(self, tokenizer: Tokenizer, max_cached_runs: int = 250_000) -> None:
        self.tokenizer, self.max_cached_runs = tokenizer, max_cached_runs
        self.run_pattern = _choose_run_pattern(tokenizer)
        is_bert = self.run_pattern is BERT_RUN_PATTERN and tokenizer.json_dict["pre_tokenizer"]["type"] == "BertPreTokenizer"
        self.lowercase: bool | None = tokenizer.json_dict["normalizer"]["lowercase"] if is_bert else None
        self.dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        self._clear_cache()

    def lookup_runs(self, text: str) -> NDArray[np.int64]:
        """Run ids of a text, for `token_ids` and `count_unknown_bytes`; valid until the next call. Run 0 is a newline."""
        if len(self.run_to_id) > self.max_cached_runs:
            self._clear_cache()
        runs = self.run_pattern.findall(text + "\n")
        run_ids = np.fromiter(map(self.run_to_id.__getitem__, runs), np.int64, len(runs))
        self._encode_new_runs()
        return run_ids

    def token_ids(self, run_ids: NDArray[np.int64]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """Token ids of these runs, concatenated, and the number of tokens of each line."""
        sizes = self.run_sizes[run_ids]
        ends = sizes.cumsum()
        cache_positions = np.repeat(self.run_starts[run_ids] - ends + sizes, sizes) + np.arange(ends[-1])
        return self.cached_token_ids[cache_positions], np.diff(ends[run_ids == 0], prepend=0)

    def count_unknown_bytes(self, run_ids: NDArray[np.int64]) -> int:
        """UTF-8 bytes of the words encoded as [UNK], plus one per word for its end: the cost of spelling them out."""
        return int(self.run_unknown_bytes[run_ids].sum())

    def _clear_cache(self) -> None:
        self.run_to_id = _RunIds({"\n": 0})
        self.cached_token_ids = np.zeros(0, self.dtype)
        self.run_starts = self.run_sizes = self.run_unknown_bytes = np.zeros(1, np.int64)

    def _encode_new_runs(self) -> None:
        if not (new_runs := self.run_to_id.new_runs):
            return
        token_ids = self._encode_runs(new_runs)
        sizes = np.fromiter(map(len, token_ids), np.int64, len(token_ids))
        starts = len(self.cached_token_ids) + sizes.cumsum() - sizes
        flat_ids = np.fromiter((i for run_token_ids in token_ids for i in run_token_ids), self.dtype, int(sizes.sum()))
        self.cached_token_ids = np.concatenate([self.cached_token_ids, flat_ids])
        self.run_starts, self.run_sizes = np.concatenate([self.run_starts, starts]), np.concatenate([self.run_sizes, sizes])
        self.run_unknown_bytes = np.concatenate([self.run_unknown_bytes, self._unknown_bytes_per_run(new_runs, token_ids)])
        self.run_to_id.new_runs = []

    def _unknown_bytes_per_run(self, runs: list[str], token_ids: list[list[int]]) -> NDArray[np.int64]:
        """(runs,): UTF-8 bytes of the unknown words of each run, plus one per word."""
        unk_token_id, num_bytes = self.tokenizer.unk_token_id, np.zeros(len(runs), np.int64)
        runs_with_unk = [index for index, run_token_ids in enumerate(token_ids) if unk_token_id in run_token_ids]
        encodings = self.tokenizer.backend_tokenizer.encode_batch(
            [runs[index] for index in runs_with_unk], add_special_tokens=False
        )
        for index, encoding in zip(runs_with_unk, encodings, strict=True):
            spans = [span for token_id, span in zip(encoding.ids, encoding.offsets, strict=True) if token_id == unk_token_id]
            num_bytes[index] = sum(len(runs[index][start:end].encode("utf-8", "replace")) + 1 for start, end in spans)
        return num_bytes

    def _encode_runs(self, runs: list[str]) -> list[list[int]]:
        """Token ids of each run. A run of ASCII letters and digits is one word: the model encodes it directly, faster."""
        backend, run_to_ids = self.tokenizer.backend_tokenizer, {}
        if self.lowercase is not None:
            words = {run: run.lower() if self.lowercase else run for run in runs if run.isascii() and run.isalnum()}
            run_to_ids = {run: [token.id for token in backend.model.tokenize(word)] for run, word in words.items()}
        remaining = [run for run in runs if run not in run_to_ids]
        encodings = backend.encode_batch_fast(remaining, add_special_tokens=False)
        run_to_ids |= {run: encoding.ids for run, encoding in zip(remaining, encodings, strict=True)}
        return [run_to_ids[run] for run in runs]


class _RunIds(dict[str, int]):
    """Maps runs to run ids; looking up a new run assigns the next id and appends it to `new_runs`."""

    def __init__(self, initial: dict[str, int]) -> None:
        super().__init__(initial)
        self.new_runs: list[str] = []

    def __missing__(self, run: str) -> int:
        run_id = self[run] = len(self)
        self.new_runs.append(run)
        return run_id


def _choose_run_pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    state = tokenizer.json_dict
    if any(not token["special"] for token in state["added_tokens"]):
        return LINE_PATTERN  # such tokens match anywhere in a text, across spaces and inside words
    normalizer, pre_tokenizer = state["normalizer"] or {}, state["pre_tokenizer"] or {}
    if tokenizer.segment_chinese and normalizer["clean_text"]:
        return CLAUSE_PATTERN
    first = (pre_tokenizer.get("pretokenizers") or [pre_tokenizer])[0]
    is_bert_normalizer = (
        normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"] and normalizer["handle_chinese_chars"]
    )
    if is_bert_normalizer and first.get("type") == "BertPreTokenizer":
        return BERT_RUN_PATTERN
    is_byte_level = normalizer.get("type") in (None, "Lowercase") and first.get("type") == "ByteLevel"
    if is_byte_level and not first["add_prefix_space"] and (first["use_regex"] or _is_byte_model(state["model"])):
        return BYTE_LEVEL_RUN_PATTERN
    return LINE_PATTERN


def _is_byte_model(model: dict[str, Any]) -> bool:
    """Whether the model encodes each byte independently of its context, so that text may be split anywhere."""
    merging_options = ("merges", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk")
    return model["type"] == "BPE" and not any(model.get(name) for name in merging_options)
