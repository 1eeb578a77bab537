"""Exact duplicates: sentences and documents met before, found from their hashes on disk in bounded memory."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import store
from .store import DOCUMENTS_FILE, SENTENCES_FILE, TOKENS_FILE, WORD_STARTS_FILE

TEMP_FILES = ("again-sentences.bin", "again-documents.bin", "hashes-documents.bin")
MAX_SORTED_HASHES = 4 << 20  # hashes sorted at a time
CHUNK_SENTENCES = 1 << 16  # sentences copied at a time


@dataclass(frozen=True)
class Duplicates:
    """For each sentence, and each document, whether an equal one came before it."""

    sentences: NDArray[np.bool_]
    documents: NDArray[np.bool_]

    @property
    def counts(self) -> dict[str, int]:
        return {"sentences": int(self.sentences.sum()), "documents": int(self.documents.sum())}


def find_duplicates(folder: Path, hashes_path: Path) -> Duplicates:
    """Repeats of the corpus being built in `part`, whose sentences have these hashes."""
    each = np.memmap(hashes_path, np.uint64, "r")
    starts = np.fromfile(folder / DOCUMENTS_FILE, np.int64)
    with (folder / TEMP_FILES[2]).open("wb") as out:
        for a, b in pairwise(starts):
            out.write(blake2b(each[a:b].tobytes(), digest_size=8).digest())
    whole = np.memmap(folder / TEMP_FILES[2], np.uint64, "r")
    return Duplicates(flag_repeats(each, folder / TEMP_FILES[0]), flag_repeats(whole, folder / TEMP_FILES[1]))


def flag_repeats(hashes: NDArray[np.uint64], path: Path) -> NDArray[np.bool_]:
    """True where the same value stands further up; sorted in shares of the range of values, each of bounded size."""
    flags = np.memmap(path, np.bool_, "w+", shape=(len(hashes),))
    shares = len(hashes) // MAX_SORTED_HASHES + 1
    for share in range(shares):
        where = _in_partition(hashes, share, shares)
        order = where[np.argsort(hashes[where], kind="stable")]
        same = hashes[order[1:]] == hashes[order[:-1]]
        flags[order[1:][same]] = True
    return flags


def _in_partition(hashes: NDArray[np.uint64], partition: int, num_partitions: int) -> NDArray[np.int64]:
    found = []
    for start in range(0, len(hashes), MAX_SORTED_HASHES):
        part = hashes[start : start + MAX_SORTED_HASHES]
        found.append(start + np.flatnonzero((part >> np.uint64(32)) * np.uint64(num_partitions) >> np.uint64(32) == partition))
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def drop_duplicates(folder: Path, dtype: np.dtype[Any], duplicates: Duplicates, kinds: Sequence[str]) -> int:
    """Write the corpus again without its repeats, in new files beside the old; how many sentences it lacks."""
    documents = np.fromfile(folder / DOCUMENTS_FILE, np.int64)
    gone = np.zeros(documents[-1], bool)
    if "documents" in kinds:
        gone |= np.repeat(np.asarray(duplicates.documents), np.diff(documents))
    if "lines" in kinds:
        gone |= duplicates.sentences
    _copy_kept(folder, dtype, ~gone)
    left = np.add.reduceat(~gone, documents[:-1], dtype=np.int64)
    np.append(0, left[left > 0].cumsum()).astype(np.int64).tofile(folder / _new_name(DOCUMENTS_FILE))
    return int(gone.sum())


def replace_files(folder: Path) -> None:
    """New files take the place of the old; done again after a kill, it ends what is left."""
    for name in (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, WORD_STARTS_FILE):
        if (folder / _new_name(name)).exists():
            (folder / _new_name(name)).replace(folder / name)


def _copy_kept(folder: Path, dtype: np.dtype[Any], keep_mask: NDArray[np.bool_]) -> None:
    tokens, starts = np.memmap(folder / TOKENS_FILE, dtype, "r"), np.memmap(folder / SENTENCES_FILE, np.int64, "r")
    flags = np.memmap(folder / WORD_STARTS_FILE, np.uint8, "r") if (folder / WORD_STARTS_FILE).exists() else None
    total = 0
    with ExitStack() as files:
        out, ends = (files.enter_context((folder / _new_name(name)).open("wb")) for name in (TOKENS_FILE, SENTENCES_FILE))
        writer = (
            None if flags is None else store.BitWriter(files.enter_context((folder / _new_name(WORD_STARTS_FILE)).open("wb")))
        )
        for first in range(0, len(keep_mask), CHUNK_SENTENCES):
            keep = keep_mask[first : first + CHUNK_SENTENCES]
            lengths = np.diff(starts[first : first + len(keep) + 1])
            a, b = int(starts[first]), int(starts[first + len(keep)])
            chosen = np.repeat(keep, lengths)
            out.write(tokens[a:b][chosen].tobytes())
            ends.write((total + lengths[keep].cumsum() - lengths[keep]).tobytes())
            total += int(lengths[keep].sum())
            if writer and flags is not None:
                writer.add(store.unpack_range(flags, a, b)[chosen])
        ends.write(np.int64(total).tobytes())
        if writer:
            writer.finish()


def _new_name(name: str) -> str:
    return name.replace(".bin", ".new")
