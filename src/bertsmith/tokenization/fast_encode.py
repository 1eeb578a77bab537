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
ALONE = PUNCTUATION + r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
SPACE = r" \t\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # white space, newline apart
BERT_RUNS = re.compile(rf"\n|[{ALONE}]|[^\n{SPACE}{ALONE}]+")
CLAUSES = re.compile(rf"\n|[{PUNCTUATION}]|[^\n{SPACE}{PUNCTUATION}]+")  # where a segmenter cuts words between those
# Byte-level splitting joins a space with the word after it, and nothing with a space after it.
SPACED_RUNS = re.compile(rf"\n|[{SPACE}\v\f\x85]*[^\n{SPACE}\v\f\x85]+|[{SPACE}\v\f\x85]+")
LINES = re.compile(r"\n|[^\n]+")


class Pieces:
    """The ids of whole blocks of lines. It remembers at most about `limit` runs, then begins anew."""

    def __init__(self, tokenizer: Tokenizer, limit: int = 250_000) -> None:
        self.tokenizer, self.limit = tokenizer, limit
        self.runs = _runs(tokenizer)
        bert = self.runs is BERT_RUNS and tokenizer.state["pre_tokenizer"]["type"] == "BertPreTokenizer"
        self.folds: bool | None = tokenizer.state["normalizer"]["lowercase"] if bert else None
        self.dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        self._forget()

    def lines(self, text: str) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """The ids of all lines one after another, and how many each line has."""
        return self.ids(self.met(text))

    def met(self, text: str) -> NDArray[np.int64]:
        """The runs of a text by number, for `ids` and `unknown`; good until the next text."""
        if len(self.numbers) > self.limit:
            self._forget()
        found = self.runs.findall(text + "\n")
        numbers = np.fromiter(map(self.numbers.__getitem__, found), np.int64, len(found))
        self._learn()
        return numbers

    def ids(self, met: NDArray[np.int64]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        sizes = self.sizes[met]
        ends = sizes.cumsum()
        where = np.repeat(self.starts[met] - ends + sizes, sizes) + np.arange(ends[-1])
        return self.flat[where], np.diff(ends[met == 0], prepend=0)

    def unknown(self, met: NDArray[np.int64]) -> int:
        """Bytes it takes to spell the words that the tokenizer does not know, each with one for its end."""
        return int(self.spelt[met].sum())

    def _forget(self) -> None:
        self.numbers = _Numbers({"\n": 0})
        self.flat = np.zeros(0, self.dtype)
        self.starts = self.sizes = self.spelt = np.zeros(1, np.int64)

    def _learn(self) -> None:
        if not (new := self.numbers.new):
            return
        ids = self._encoded(new)
        sizes = np.fromiter(map(len, ids), np.int64, len(ids))
        starts = len(self.flat) + sizes.cumsum() - sizes
        flat = np.fromiter((i for piece in ids for i in piece), self.dtype, int(sizes.sum()))
        self.flat = np.concatenate([self.flat, flat])
        self.starts, self.sizes = np.concatenate([self.starts, starts]), np.concatenate([self.sizes, sizes])
        self.spelt = np.concatenate([self.spelt, self._spelt(new, ids)])
        self.numbers.new = []

    def _spelt(self, runs: list[str], ids: list[list[int]]) -> NDArray[np.int64]:
        """Bytes of the unknown words of each run."""
        unk, sizes = self.tokenizer.unk, np.zeros(len(runs), np.int64)
        where = [number for number, piece in enumerate(ids) if unk in piece]
        encodings = self.tokenizer.rust.encode_batch([runs[number] for number in where], add_special_tokens=False)
        for number, encoding in zip(where, encodings, strict=True):
            spans = [span for one, span in zip(encoding.ids, encoding.offsets, strict=True) if one == unk]
            sizes[number] = sum(len(runs[number][start:end].encode("utf-8", "replace")) + 1 for start, end in spans)
        return sizes

    def _encoded(self, runs: list[str]) -> list[list[int]]:
        """The ids of each run. Plain letters and digits are a word as they stand: for them the model alone is asked."""
        rust, known = self.tokenizer.rust, {}
        if self.folds is not None:
            words = {run: run.lower() if self.folds else run for run in runs if run.isascii() and run.isalnum()}
            known = {run: [token.id for token in rust.model.tokenize(word)] for run, word in words.items()}
        others = [run for run in runs if run not in known]
        encodings = rust.encode_batch_fast(others, add_special_tokens=False)
        known |= {run: encoding.ids for run, encoding in zip(others, encodings, strict=True)}
        return [known[run] for run in runs]


class _Numbers(dict[str, int]):
    """Runs to numbers; a run not met before gets the next number and is put on the list of new ones."""

    def __init__(self, known: dict[str, int]) -> None:
        super().__init__(known)
        self.new: list[str] = []

    def __missing__(self, run: str) -> int:
        number = self[run] = len(self)
        self.new.append(run)
        return number


def _runs(tokenizer: Tokenizer) -> re.Pattern[str]:
    state = tokenizer.state
    if any(not token["special"] for token in state["added_tokens"]):
        return LINES  # such a token is found anywhere in a text, over spaces and inside words
    normalizer, splitter = state["normalizer"] or {}, state["pre_tokenizer"] or {}
    if tokenizer.segments and normalizer["clean_text"]:
        return CLAUSES
    first = (splitter.get("pretokenizers") or [splitter])[0]
    bert = normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"] and normalizer["handle_chinese_chars"]
    if bert and first.get("type") == "BertPreTokenizer":
        return BERT_RUNS
    raw = normalizer.get("type") in (None, "Lowercase") and first.get("type") == "ByteLevel"
    if raw and not first["add_prefix_space"] and (first["use_regex"] or _by_byte(state["model"])):
        return SPACED_RUNS
    return LINES


def _by_byte(model: dict[str, Any]) -> bool:
    """The model gives each byte its id whatever stands around it, so a text may be cut anywhere."""
    joining = ("merges", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk")
    return model["type"] == "BPE" and not any(model.get(name) for name in joining)
