"""Word co-occurrence counts in bounded memory, by external merge sort: sorted runs on disk, then merged.

As in GloVe (Pennington et al. 2014): two words at distance d add 1/d to X[i, j] and X[j, i], unknown words are removed
before distances are measured, and no window crosses a sentence (or document) boundary. X is symmetric: only i <= j is
stored.
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

from ..artifacts import read_json, read_object
from ..errors import UserError
from ..rng import Stream, permutation
from ..writing import replace_file, write_json
from .store import Corpus

WindowScope = Literal["sentence", "document"]
Progress = Callable[[int, int], None]
PairKeys = NDArray[np.uint64]  # i << 32 | j
PairSums = NDArray[np.int64]  # of weight_unit(window) / distance, an integer: sums are exact in any order

ENTRY_DTYPE = np.dtype([("i", "<u4"), ("j", "<u4"), ("x", "<f4")])
RUN_DTYPE = np.dtype([("key", "<u8"), ("sum", "<i8")])
MAX_WINDOW = 20  # words; larger windows could overflow 64-bit sums
MIN_MEMORY = 1 << 20  # bytes
COUNTS_FILE, METADATA_FILE = "counts.bin", "counts.json"
_DISTANCE_BITS = np.uint64(5)  # low bits of a sort key that hold the distance


@dataclass(frozen=True)
class CooccurrenceCounts:
    """Entries (i, j, X[i, j]) with i <= j on disk, in blocks of ascending keys, each shuffled: a slice of a block is a random
    sample of it."""

    path: Path
    block_starts: NDArray[np.int64]  # (blocks + 1,): start of each block, and the end

    def __len__(self) -> int:
        return int(self.block_starts[-1])

    @property
    def entries(self) -> NDArray[Any]:
        """All entries, memory-mapped."""
        return np.memmap(self.path, ENTRY_DTYPE, "r") if len(self) else np.zeros(0, ENTRY_DTYPE)

    def shard(self, index: int, num_shards: int) -> NDArray[Any]:
        """Shard `index` of `num_shards`: one slice of every block, a random sample of the table. Read, not memory-mapped."""
        sizes = np.diff(self.block_starts)
        starts, ends = (self.block_starts[:-1] + sizes * k // num_shards for k in (index, index + 1))
        parts = [_read_entries(self.path, ENTRY_DTYPE, int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
        return np.concatenate([np.zeros(0, ENTRY_DTYPE), *parts])


def count_cooccurrences(
    corpus: Corpus, folder: Path, window: int = 10, scope: WindowScope = "sentence", memory: int = 512 << 20,
    progress: Progress = lambda done, of: None,
) -> CooccurrenceCounts:  # fmt: skip
    """Count into `folder`, or return the counts found there; an interrupted count is resumed.

    `memory` bounds the memory used, in bytes; the counts do not depend on it, but their order on disk does.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise UserError(f"window = {window} must be between 1 and {MAX_WINDOW} words")
    if memory < MIN_MEMORY:
        raise UserError(f"memory = {memory:,} bytes is too little to count co-occurrences; give at least {MIN_MEMORY:,}")
    settings = {"corpus": corpus.card["identity"], "window": window, "scope": scope, "memory": memory}
    if (folder / METADATA_FILE).exists() and read_object(folder / METADATA_FILE)["settings"] == settings:
        return CooccurrenceCounts(folder / COUNTS_FILE, np.array(read_object(folder / METADATA_FILE)["blocks"], np.int64))
    runs_folder = folder / "runs"
    if not (runs_folder / METADATA_FILE).exists() or read_json(runs_folder / METADATA_FILE) != settings:
        shutil.rmtree(runs_folder, ignore_errors=True)
        runs_folder.mkdir(parents=True)
        write_json(runs_folder / METADATA_FILE, settings)
    _write_runs(corpus, runs_folder, window, scope, memory, progress)
    blocks = _merge_runs(sorted(runs_folder.glob("run-*.bin")), folder / COUNTS_FILE, window, memory)
    write_json(folder / METADATA_FILE, {"settings": settings, "blocks": blocks})
    shutil.rmtree(runs_folder)
    return CooccurrenceCounts(folder / COUNTS_FILE, np.array(blocks, np.int64))


def weight_unit(window: int) -> int:
    """Integer weight of distance 1: the least common multiple of all distances, so that every 1/d is an integer."""
    return math.lcm(*range(1, window + 1))


def _write_runs(corpus: Corpus, runs_folder: Path, window: int, scope: WindowScope, memory: int, progress: Progress) -> None:
    """Write one sorted run per range of the corpus; runs of an interrupted count are kept."""
    step, total = max(window, memory // (48 * window)), len(corpus.tokens)
    # The last `window` words of the range before.
    previous_tokens, previous_scopes = (
        np.zeros(0, np.uint64),
        np.zeros(0, np.int64),
    )
    for index, start in enumerate(range(0, total, step)):
        token_ids, scope_ids = _read_known_tokens(corpus, start, min(start + step, total), scope)
        token_ids, scope_ids, first_new = (
            np.concatenate([previous_tokens, token_ids]),
            np.concatenate([previous_scopes, scope_ids]),
            len(previous_tokens),
        )
        path = runs_folder / f"run-{index:06d}.bin"
        if not path.exists():
            _write_run(path, *sum_pairs(_pair_keys(token_ids, scope_ids, first_new, window), window))
        previous_tokens, previous_scopes = token_ids[-window:], scope_ids[-window:]
        progress(min(start + step, total), total)


def _read_known_tokens(corpus: Corpus, start: int, end: int, scope: WindowScope) -> tuple[PairKeys, NDArray[np.int64]]:
    """Non-special token ids of a range of the corpus, and the sentence or document index of each."""
    tokens = np.asarray(corpus.tokens[start:end])
    known = ~corpus.tokenizer.is_special[tokens]
    scope_offsets = corpus.sentence_offsets if scope == "sentence" else corpus.document_token_offsets
    first = int(np.searchsorted(scope_offsets, start, "right"))
    last = int(np.searchsorted(scope_offsets, end, "left"))
    scope_increments = np.zeros(end - start, np.int64)
    np.add.at(scope_increments, np.asarray(scope_offsets[first:last]) - start, 1)
    return tokens[known].astype(np.uint64), (first + scope_increments.cumsum())[known]


def _pair_keys(token_ids: PairKeys, scope_ids: NDArray[np.int64], first_new: int, window: int) -> PairKeys:
    """Sort keys (i << 29 | j) << 5 | distance, i <= j, of all pairs within `window` with the right word from `first_new` on."""
    parts = []
    for distance in range(1, window + 1):
        first_right = max(distance, first_new)
        if first_right >= len(token_ids):
            break
        left, right = token_ids[first_right - distance : len(token_ids) - distance], token_ids[first_right:]
        same = scope_ids[first_right - distance : len(token_ids) - distance] == scope_ids[first_right:]
        left, right = left[same], right[same]
        keys = np.minimum(left, right) << np.uint64(29) | np.maximum(left, right)  # 29 bits per id, 5 for the distance
        parts.append(keys << _DISTANCE_BITS | np.uint64(distance))
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def sum_pairs(pairs: PairKeys, window: int) -> tuple[PairKeys, PairSums]:
    """Distinct pair keys, sorted, with the sum of their integer weights; the diagonal i = j counts twice."""
    pairs.sort()
    weights = np.zeros(32, np.int64)
    weights[1 : window + 1] = weight_unit(window) // np.arange(1, window + 1)
    values, keys = weights[(pairs & np.uint64(31)).astype(np.uint8)], pairs >> _DISTANCE_BITS
    group_starts = np.flatnonzero(np.diff(keys, prepend=np.uint64(2**63)) != 0)
    sums = np.add.reduceat(values, group_starts) if len(group_starts) else values
    i, j = keys[group_starts] >> np.uint64(29), keys[group_starts] & np.uint64(2**29 - 1)
    return i << np.uint64(32) | j, np.where(i == j, 2 * sums, sums)


def _write_run(path: Path, keys: PairKeys, sums: PairSums) -> None:
    entries = np.empty(len(keys), RUN_DTYPE)
    entries["key"], entries["sum"] = keys, sums
    with replace_file(path) as file:
        file.write(entries.tobytes())


def _merge_runs(runs: list[Path], path: Path, window: int, memory: int) -> list[int]:
    """Merge all runs into one file of entries, one range of keys at a time; returns the block offsets."""
    ranges = _key_ranges(runs, max(1024, memory // 96))
    blocks = [0]
    with replace_file(path) as file:
        for index, bounds in enumerate(pairwise(ranges)):
            parts = [_read_entries(run, RUN_DTYPE, int(start), int(end)) for run, start, end in zip(runs, *bounds, strict=True)]
            keys, sums = _sum_duplicates(np.concatenate(parts))
            order = permutation(len(keys), 0, Stream.COOCCURRENCE_BLOCKS, index)
            entries = np.empty(len(keys), ENTRY_DTYPE)
            entries["i"], entries["j"] = (keys >> np.uint64(32))[order], (keys & np.uint64(2**32 - 1))[order]
            entries["x"] = (sums / weight_unit(window))[order]
            file.write(entries.tobytes())
            blocks.append(blocks[-1] + len(keys))
    return blocks


def _sum_duplicates(entries: NDArray[Any]) -> tuple[PairKeys, PairSums]:
    order = np.argsort(entries["key"], kind="stable")  # stable sort (timsort) is fast on concatenated sorted runs
    keys, sums = entries["key"][order], entries["sum"][order]
    group_starts = np.flatnonzero(np.diff(keys, prepend=np.uint64(2**64 - 1)) != 0)
    return keys[group_starts], np.add.reduceat(sums, group_starts) if len(group_starts) else sums


def _key_ranges(runs: list[Path], max_entries: int) -> list[NDArray[np.int64]]:
    """Boundaries of key ranges with about `max_entries` entries each: for each boundary, its position in every run."""
    sizes = np.array([run.stat().st_size // RUN_DTYPE.itemsize for run in runs], np.int64)
    step = max(1, min(max_entries // 64, 4096))
    keys = np.sort(np.concatenate([np.zeros(0, np.uint64), *(keys[::step].copy() for keys in _iter_keys(runs))]))
    splits = keys[:: max(1, max_entries // step)][1:]
    run_positions = [np.searchsorted(keys, splits) for keys in _iter_keys(runs)]
    boundaries = np.stack(run_positions, 1) if run_positions else np.zeros((len(splits), 0), np.int64)
    return [np.zeros(len(runs), np.int64), *boundaries, sizes]


def _iter_keys(runs: list[Path]) -> Iterator[PairKeys]:
    """Yield the memory-mapped keys of each run; copy what is kept, so that the map is released."""
    for run in runs:
        yield np.memmap(run, RUN_DTYPE, "r")["key"] if run.stat().st_size else np.zeros(0, np.uint64)


def _read_entries(path: Path, dtype: np.dtype[Any], start: int, end: int) -> NDArray[Any]:
    return np.fromfile(path, dtype, end - start, offset=start * dtype.itemsize)
