"""Text to ids at speed: each distinct run of characters is encoded once, and then looked up.

A run is a stretch of text that its tokenizer never joins with its neighbours, so that encoding runs one by one gives
the ids of the whole. Where such borders lie is known for each way of splitting; the pieces of a new run come from the
`tokenizers` library itself, so the ids are its ids.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tokenizer import Tokenizer

# Characters that are always a word of their own for BERT: punctuation, and Chinese characters. Leaving some out costs
# time, never exactness: they are then split inside a longer run.
PUNCTUATION = (
    r"!-/:-@\[-`{-~"
    r"\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u2010-\u2027\u2030-\u2043\u2045-\u2051\u2053-\u205e"
    r"\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff03\uff05-\uff0a\uff0c-\uff0f\uff1a\uff1b\uff1f\uff20"
    r"\uff3b-\uff3d\uff3f\uff5b\uff5d"
)
SINGLE_CHAR_WORDS = PUNCTUATION + r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WHITESPACE = r" \t\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # white space, newline apart
BERT_RUN_PATTERN = re.compile(rf"\n|[{SINGLE_CHAR_WORDS}]|[^\n{WHITESPACE}{SINGLE_CHAR_WORDS}]+")
CLAUSE_PATTERN = re.compile(
    rf"\n|[{PUNCTUATION}]|[^\n{WHITESPACE}{PUNCTUATION}]+"
)  # where a segmenter cuts words between those
# Byte-level splitting joins a space with the word after it, and nothing with a space after it.
BYTE_LEVEL_RUN_PATTERN = re.compile(rf"\n|[{WHITESPACE}\v\f\x85]*[^\n{WHITESPACE}\v\f\x85]+|[{WHITESPACE}\v\f\x85]+")
LINE_PATTERN = re.compile(r"\n|[^\n]+")


class CachedEncoder:
    """The ids of whole blocks of lines. It remembers at most about `limit` runs, then begins anew."""

    def __init__(self, tokenizer: Tokenizer, max_cached_runs: int = 250_000) -> None:
        self.tokenizer, self.max_cached_runs = tokenizer, max_cached_runs
        self.run_pattern = _choose_run_pattern(tokenizer)
        bert = self.run_pattern is BERT_RUN_PATTERN and tokenizer.json_dict["pre_tokenizer"]["type"] == "BertPreTokenizer"
        self.lowercase: bool | None = tokenizer.json_dict["normalizer"]["lowercase"] if bert else None
        self.dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        self._clear_cache()

    def encode_lines(self, text: str) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """The ids of all lines one after another, and how many each line has."""
        return self.token_ids(self.lookup_runs(text))

    def lookup_runs(self, text: str) -> NDArray[np.int64]:
        """The runs of a text by number, for `ids` and `unknown`; good until the next text."""
        if len(self.run_to_id) > self.max_cached_runs:
            self._clear_cache()
        found = self.run_pattern.findall(text + "\n")
        numbers = np.fromiter(map(self.run_to_id.__getitem__, found), np.int64, len(found))
        self._encode_new_runs()
        return numbers

    def token_ids(self, run_ids: NDArray[np.int64]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        sizes = self.run_sizes[run_ids]
        ends = sizes.cumsum()
        where = np.repeat(self.run_starts[run_ids] - ends + sizes, sizes) + np.arange(ends[-1])
        return self.cached_token_ids[where], np.diff(ends[run_ids == 0], prepend=0)

    def count_unknown_bytes(self, run_ids: NDArray[np.int64]) -> int:
        """Bytes it takes to spell the words that the tokenizer does not know, each with one for its end."""
        return int(self.run_unknown_bytes[run_ids].sum())

    def _clear_cache(self) -> None:
        self.run_to_id = _RunIds({"\n": 0})
        self.cached_token_ids = np.zeros(0, self.dtype)
        self.run_starts = self.run_sizes = self.run_unknown_bytes = np.zeros(1, np.int64)

    def _encode_new_runs(self) -> None:
        if not (new := self.run_to_id.new_runs):
            return
        ids = self._encode_runs(new)
        sizes = np.fromiter(map(len, ids), np.int64, len(ids))
        starts = len(self.cached_token_ids) + sizes.cumsum() - sizes
        flat = np.fromiter((i for piece in ids for i in piece), self.dtype, int(sizes.sum()))
        self.cached_token_ids = np.concatenate([self.cached_token_ids, flat])
        self.run_starts, self.run_sizes = np.concatenate([self.run_starts, starts]), np.concatenate([self.run_sizes, sizes])
        self.run_unknown_bytes = np.concatenate([self.run_unknown_bytes, self._unknown_bytes_per_run(new, ids)])
        self.run_to_id.new_runs = []

    def _unknown_bytes_per_run(self, runs: list[str], token_ids: list[list[int]]) -> NDArray[np.int64]:
        """Bytes of the unknown words of each run."""
        unk, sizes = self.tokenizer.unk_token_id, np.zeros(len(runs), np.int64)
        where = [number for number, piece in enumerate(token_ids) if unk in piece]
        encodings = self.tokenizer.backend_tokenizer.encode_batch([runs[number] for number in where], add_special_tokens=False)
        for number, encoding in zip(where, encodings, strict=True):
            spans = [span for one, span in zip(encoding.ids, encoding.offsets, strict=True) if one == unk]
            sizes[number] = sum(len(runs[number][start:end].encode("utf-8", "replace")) + 1 for start, end in spans)
        return sizes

    def _encode_runs(self, runs: list[str]) -> list[list[int]]:
        """The ids of each run. Plain letters and digits are a word as they stand: for them the model alone is asked."""
        rust, known = self.tokenizer.backend_tokenizer, {}
        if self.lowercase is not None:
            words = {run: run.lower() if self.lowercase else run for run in runs if run.isascii() and run.isalnum()}
            known = {run: [token.id for token in rust.model.tokenize(word)] for run, word in words.items()}
        others = [run for run in runs if run not in known]
        encodings = rust.encode_batch_fast(others, add_special_tokens=False)
        known |= {run: encoding.ids for run, encoding in zip(others, encodings, strict=True)}
        return [known[run] for run in runs]


class _RunIds(dict[str, int]):
    """Runs to numbers; a run not met before gets the next number and is put on the list of new ones."""

    def __init__(self, initial: dict[str, int]) -> None:
        super().__init__(initial)
        self.new_runs: list[str] = []

    def __missing__(self, run: str) -> int:
        number = self[run] = len(self)
        self.new_runs.append(run)
        return number


def _choose_run_pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    state = tokenizer.json_dict
    if any(not token["special"] for token in state["added_tokens"]):
        return LINE_PATTERN  # such a token is found anywhere in a text, over spaces and inside words
    normalizer, splitter = state["normalizer"] or {}, state["pre_tokenizer"] or {}
    if tokenizer.segment_chinese and normalizer["clean_text"]:
        return CLAUSE_PATTERN
    first = (splitter.get("pretokenizers") or [splitter])[0]
    bert = normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"] and normalizer["handle_chinese_chars"]
    if bert and first.get("type") == "BertPreTokenizer":
        return BERT_RUN_PATTERN
    raw = normalizer.get("type") in (None, "Lowercase") and first.get("type") == "ByteLevel"
    if raw and not first["add_prefix_space"] and (first["use_regex"] or _is_byte_model(state["model"])):
        return BYTE_LEVEL_RUN_PATTERN
    return LINE_PATTERN


def _is_byte_model(model: dict[str, Any]) -> bool:
    """The model gives each byte its id whatever stands around it, so a text may be cut anywhere."""
    joining = ("merges", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk")
    return model["type"] == "BPE" and not any(model.get(name) for name in joining)
