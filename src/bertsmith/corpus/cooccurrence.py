"""How often words stand near one another, counted for any corpus in bounded memory: sorted runs on disk, then merged.

As GloVe counts (Pennington et al. 2014): words d apart add 1/d to both orders of the pair, unknown words are taken out
before distances are measured, and no window crosses a border. X is symmetric, so that only i <= j is kept.
"""

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..artifacts import read_json, write_json
from ..errors import UserError
from ..rng import Stream, permutation
from .store import Corpus

WindowScope = Literal["sentence", "document"]
Progress = Callable[[int, int], None]
PairKeys = NDArray[np.uint64]  # i << 32 | j
PairSums = NDArray[np.int64]  # of `unit(window) / distance`, which is whole: sums are exact, in whatever order

ENTRY_DTYPE = np.dtype([("i", "<u4"), ("j", "<u4"), ("x", "<f4")])
RUN_DTYPE = np.dtype([("key", "<u8"), ("sum", "<i8")])
MAX_WINDOW = 20  # words: beyond it sums could leave 64 bits
MIN_MEMORY = 1 << 20  # bytes of memory
COUNTS_FILE, METADATA_FILE = "counts.bin", "counts.json"
_DISTANCE_BITS = np.uint64(5)  # of a distance, behind a key


@dataclass(frozen=True)
class CooccurrenceCounts:
    """Pairs i <= j and their X on disk, in blocks of rising keys, each shuffled: any slice of a block is a fair sample."""

    path: Path
    block_starts: NDArray[np.int64]  # where each begins, and the end

    def __len__(self) -> int:
        return int(self.block_starts[-1])

    @property
    def entries(self) -> NDArray[Any]:
        """All of them, mapped."""
        return np.memmap(self.path, ENTRY_DTYPE, "r") if len(self) else np.zeros(0, ENTRY_DTYPE)

    def shard(self, index: int, num_shards: int) -> NDArray[Any]:
        """One of `of` parts, each a sample of the whole table: so many pieces of the file are read, and nothing mapped."""
        sizes = np.diff(self.block_starts)
        begins, ends = (self.block_starts[:-1] + sizes * at // num_shards for at in (index, index + 1))
        pieces = [_read_entries(self.path, ENTRY_DTYPE, int(a), int(b)) for a, b in zip(begins, ends, strict=True)]
        return np.concatenate([np.zeros(0, ENTRY_DTYPE), *pieces])


def count_cooccurrences(
    corpus: Corpus, folder: Path, window: int = 10, scope: WindowScope = "sentence", memory: int = 512 << 20,
    progress: Progress = lambda done, of: None,
) -> CooccurrenceCounts:  # fmt: skip
    """The counts in `folder`, made or found there; a count that was killed goes on where it was.

    `memory` bounds what is held at a time, in bytes; the counts do not depend on it (their order on disk does).
    """
    if not 1 <= window <= MAX_WINDOW:
        raise UserError(f"window={window} is not between 1 and {MAX_WINDOW} words")
    if memory < MIN_MEMORY:
        raise UserError(f"memory={memory:,} bytes is too little to count in; give at least {MIN_MEMORY:,}")
    asked = {"corpus": corpus.card["made_by"], "window": window, "within": scope, "memory": memory}
    if (folder / METADATA_FILE).exists() and read_json(folder / METADATA_FILE)["asked"] == asked:
        return CooccurrenceCounts(folder / COUNTS_FILE, np.array(read_json(folder / METADATA_FILE)["blocks"], np.int64))
    runs = folder / "runs"
    if not (runs / METADATA_FILE).exists() or read_json(runs / METADATA_FILE) != asked:
        shutil.rmtree(runs, ignore_errors=True)
        runs.mkdir(parents=True)
        write_json(runs / METADATA_FILE, asked)
    _write_runs(corpus, runs, window, scope, memory, progress)
    blocks = _merge_runs(sorted(runs.glob("run-*.bin")), folder / COUNTS_FILE, window, memory)
    write_json(folder / METADATA_FILE, {"asked": asked, "blocks": blocks})
    shutil.rmtree(runs)
    return CooccurrenceCounts(folder / COUNTS_FILE, np.array(blocks, np.int64))


def weight_unit(window: int) -> int:
    """What a pair one apart adds: the least number that every distance divides."""
    return math.lcm(*range(1, window + 1))


def _write_runs(corpus: Corpus, runs: Path, window: int, scope: WindowScope, memory: int, progress: Progress) -> None:
    """One sorted run for each stretch of the corpus; those of an earlier, killed count are there already."""
    step, total = max(window, memory // (48 * window)), len(corpus.tokens)
    before, owners = np.zeros(0, np.uint64), np.zeros(0, np.int64)  # the last words of the stretch before
    for number, begin in enumerate(range(0, total, step)):
        words, owner = _read_known_tokens(corpus, begin, min(begin + step, total), scope)
        words, owner, fresh = np.concatenate([before, words]), np.concatenate([owners, owner]), len(before)
        path = runs / f"run-{number:06d}.bin"
        if not path.exists():
            _write_run(path, *sum_pairs(_pair_keys(words, owner, fresh, window), window))
        before, owners = words[-window:], owner[-window:]
        progress(min(begin + step, total), total)


def _read_known_tokens(corpus: Corpus, begin: int, end: int, scope: WindowScope) -> tuple[PairKeys, NDArray[np.int64]]:
    """The ids of a stretch that stand for text, and the sentence or document of each."""
    tokens = np.asarray(corpus.tokens[begin:end])
    known = ~corpus.tokenizer.is_special[tokens]
    starts = corpus.sentence_offsets if scope == "sentence" else corpus.document_token_offsets
    first = int(np.searchsorted(starts, begin, "right"))
    last = int(np.searchsorted(starts, end, "left"))
    marks = np.zeros(end - begin, np.int64)
    np.add.at(marks, np.asarray(starts[first:last]) - begin, 1)
    return tokens[known].astype(np.uint64), (first + marks.cumsum())[known]


def _pair_keys(token_ids: PairKeys, scope_ids: NDArray[np.int64], first_new: int, window: int) -> PairKeys:
    """Each pair at most `window` apart whose later word is no earlier than `fresh`: its key, then its distance."""
    found = []
    for apart in range(1, window + 1):
        later = max(apart, first_new)
        if later >= len(token_ids):
            break
        left, right = token_ids[later - apart : len(token_ids) - apart], token_ids[later:]
        same = scope_ids[later - apart : len(token_ids) - apart] == scope_ids[later:]
        left, right = left[same], right[same]
        keys = np.minimum(left, right) << np.uint64(29) | np.maximum(left, right)  # ids take 29 bits, a distance 5
        found.append(keys << _DISTANCE_BITS | np.uint64(apart))
    return np.concatenate([np.zeros(0, np.uint64), *found])


def sum_pairs(pairs: PairKeys, window: int) -> tuple[PairKeys, PairSums]:
    """Each pair once, in order, with the sum of what its distances are worth; a word with itself counts twice."""
    pairs.sort()
    worth = np.zeros(32, np.int64)
    worth[1 : window + 1] = weight_unit(window) // np.arange(1, window + 1)
    values, keys = worth[(pairs & np.uint64(31)).astype(np.uint8)], pairs >> _DISTANCE_BITS
    first = np.flatnonzero(np.diff(keys, prepend=np.uint64(2**63)) != 0)
    sums = np.add.reduceat(values, first) if len(first) else values
    i, j = keys[first] >> np.uint64(29), keys[first] & np.uint64(2**29 - 1)
    return i << np.uint64(32) | j, np.where(i == j, 2 * sums, sums)


def _write_run(path: Path, keys: PairKeys, sums: PairSums) -> None:
    entries = np.empty(len(keys), RUN_DTYPE)
    entries["key"], entries["sum"] = keys, sums
    part = path.with_suffix(".part")
    entries.tofile(part)
    part.replace(path)


def _merge_runs(runs: list[Path], path: Path, window: int, memory: int) -> list[int]:
    """All runs as one file of entries, a range of keys at a time; returns where its blocks begin."""
    cuts = _key_ranges(runs, max(1024, memory // 96))
    blocks, part = [0], path.with_suffix(".part")
    with part.open("wb") as file:
        for number, ends in enumerate(pairwise(cuts)):
            pieces = [_read_entries(run, RUN_DTYPE, int(a), int(b)) for run, a, b in zip(runs, *ends, strict=True)]
            keys, sums = _sum_duplicates(np.concatenate(pieces))
            order = permutation(len(keys), 0, Stream.COOCCURRENCE_BLOCKS, number)
            entries = np.empty(len(keys), ENTRY_DTYPE)
            entries["i"], entries["j"] = (keys >> np.uint64(32))[order], (keys & np.uint64(2**32 - 1))[order]
            entries["x"] = (sums / weight_unit(window))[order]
            entries.tofile(file)
            blocks.append(blocks[-1] + len(keys))
    part.replace(path)
    return blocks


def _sum_duplicates(entries: NDArray[Any]) -> tuple[PairKeys, PairSums]:
    order = np.argsort(entries["key"], kind="stable")  # the runs lie sorted one behind another, which it makes use of
    keys, sums = entries["key"][order], entries["sum"][order]
    first = np.flatnonzero(np.diff(keys, prepend=np.uint64(2**64 - 1)) != 0)
    return keys[first], np.add.reduceat(sums, first) if len(first) else sums


def _key_ranges(runs: list[Path], max_entries: int) -> list[NDArray[np.int64]]:
    """Ranges of keys with about `most` entries each, as where they begin in every run; the last is every run's end."""
    sizes = np.array([run.stat().st_size // RUN_DTYPE.itemsize for run in runs], np.int64)
    every = max(1, min(max_entries // 64, 4096))
    keys = np.sort(np.concatenate([np.zeros(0, np.uint64), *(keys[::every].copy() for keys in _iter_keys(runs))]))
    splits = keys[:: max(1, max_entries // every)][1:]
    found = [np.searchsorted(keys, splits) for keys in _iter_keys(runs)]
    inside = np.stack(found, 1) if found else np.zeros((len(splits), 0), np.int64)
    return [np.zeros(len(runs), np.int64), *inside, sizes]


def _iter_keys(runs: list[Path]) -> Iterator[PairKeys]:
    """The keys of one run after another, mapped no longer than they are looked at: copy what is to be kept."""
    for run in runs:
        yield np.memmap(run, RUN_DTYPE, "r")["key"] if run.stat().st_size else np.zeros(0, np.uint64)


def _read_entries(path: Path, dtype: np.dtype[Any], begin: int, end: int) -> NDArray[Any]:
    return np.fromfile(path, dtype, end - begin, offset=begin * dtype.itemsize)
