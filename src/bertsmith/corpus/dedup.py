"""Exact deduplication of sentences and documents by their hashes, on disk and in bounded memory."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..writing import allocate_file, open_own, write_atomic
from . import store
from .store import DOCUMENTS_FILE, SENTENCES_FILE, TOKENS_FILE, WORD_STARTS_FILE

TEMP_FILES = ("again-sentences.bin", "again-documents.bin", "hashes-documents.bin")
MAX_SORTED_HASHES = 4 << 20  # hashes sorted in memory at a time
CHUNK_SENTENCES = 1 << 16  # sentences copied at a time


@dataclass(frozen=True)
class Duplicates:
    """For each sentence and each document: an equal one occurs earlier in the corpus."""

    sentences: NDArray[np.bool_]
    documents: NDArray[np.bool_]

    @property
    def counts(self) -> dict[str, int]:
        return {"sentences": int(self.sentences.sum()), "documents": int(self.documents.sum())}


def find_duplicates(folder: Path, hashes_path: Path) -> Duplicates:
    """Duplicates in the corpus being built in `folder`, from the hashes of its sentences (uint64, in order)."""
    sentence_hashes = np.memmap(hashes_path, np.uint64, "r")
    document_offsets = np.fromfile(folder / DOCUMENTS_FILE, np.int64)
    with open_own(folder / TEMP_FILES[2], "wb") as out:
        for start, end in pairwise(document_offsets):
            out.write(blake2b(sentence_hashes[start:end].tobytes(), digest_size=8).digest())
    document_hashes = np.memmap(folder / TEMP_FILES[2], np.uint64, "r")
    return Duplicates(
        flag_repeats(sentence_hashes, folder / TEMP_FILES[0]), flag_repeats(document_hashes, folder / TEMP_FILES[1])
    )


def flag_repeats(hashes: NDArray[np.uint64], path: Path) -> NDArray[np.bool_]:
    """(hashes,) bool, memory-mapped at `path`: the same hash occurs earlier. Sorts one partition of the values at a time."""
    allocate_file(path, len(hashes))
    is_repeat = np.memmap(path, np.bool_, "r+", shape=(len(hashes),))
    num_partitions = len(hashes) // MAX_SORTED_HASHES + 1
    for partition in range(num_partitions):
        indices = _in_partition(hashes, partition, num_partitions)
        order = indices[np.argsort(hashes[indices], kind="stable")]
        is_equal = hashes[order[1:]] == hashes[order[:-1]]
        is_repeat[order[1:][is_equal]] = True
    return is_repeat


def _in_partition(hashes: NDArray[np.uint64], partition: int, num_partitions: int) -> NDArray[np.int64]:
    """Indices of the hashes in one of `num_partitions` equal parts of the value range."""
    parts = []
    for start in range(0, len(hashes), MAX_SORTED_HASHES):
        chunk = hashes[start : start + MAX_SORTED_HASHES]
        parts.append(start + np.flatnonzero((chunk >> np.uint64(32)) * np.uint64(num_partitions) >> np.uint64(32) == partition))
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def drop_duplicates(folder: Path, dtype: np.dtype[Any], duplicates: Duplicates, kinds: Sequence[str]) -> int:
    """Write the corpus without its duplicates to new files beside the old ones; returns the number of dropped sentences."""
    document_offsets = np.fromfile(folder / DOCUMENTS_FILE, np.int64)
    dropped = np.zeros(document_offsets[-1], bool)
    if "documents" in kinds:
        dropped |= np.repeat(np.asarray(duplicates.documents), np.diff(document_offsets))
    if "lines" in kinds:
        dropped |= duplicates.sentences
    _copy_kept(folder, dtype, ~dropped)
    sentences_left = np.add.reduceat(~dropped, document_offsets[:-1], dtype=np.int64)
    ends = np.append(0, sentences_left[sentences_left > 0].cumsum()).astype(np.int64)
    write_atomic(folder / _new_name(DOCUMENTS_FILE), ends.tobytes())
    return int(dropped.sum())


def replace_files(folder: Path) -> None:
    """Replace the old files by the new ones; can be repeated after an interruption."""
    for name in (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, WORD_STARTS_FILE):
        if (folder / _new_name(name)).exists():
            (folder / _new_name(name)).replace(folder / name)


def _copy_kept(folder: Path, dtype: np.dtype[Any], keep_mask: NDArray[np.bool_]) -> None:
    tokens, sentence_offsets = np.memmap(folder / TOKENS_FILE, dtype, "r"), np.memmap(folder / SENTENCES_FILE, np.int64, "r")
    word_starts = np.memmap(folder / WORD_STARTS_FILE, np.uint8, "r") if (folder / WORD_STARTS_FILE).exists() else None
    num_tokens = 0
    with ExitStack() as files:
        tokens_out, offsets_out = (
            files.enter_context(open_own(folder / _new_name(name), "wb")) for name in (TOKENS_FILE, SENTENCES_FILE)
        )
        writer = (
            None
            if word_starts is None
            else store.BitWriter(files.enter_context(open_own(folder / _new_name(WORD_STARTS_FILE), "wb")))
        )
        for first in range(0, len(keep_mask), CHUNK_SENTENCES):
            keep = keep_mask[first : first + CHUNK_SENTENCES]
            lengths = np.diff(sentence_offsets[first : first + len(keep) + 1])
            start, end = int(sentence_offsets[first]), int(sentence_offsets[first + len(keep)])
            token_mask = np.repeat(keep, lengths)
            tokens_out.write(tokens[start:end][token_mask].tobytes())
            offsets_out.write((num_tokens + lengths[keep].cumsum() - lengths[keep]).tobytes())
            num_tokens += int(lengths[keep].sum())
            if writer and word_starts is not None:
                writer.add(store.unpack_range(word_starts, start, end)[token_mask])
        offsets_out.write(np.int64(num_tokens).tobytes())
        if writer:
            writer.finish()


def _new_name(name: str) -> str:
    return name.replace(".bin", ".new")
