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
from .store import DOCUMENTS, SENTENCES, TOKENS, WORDS

FILES = ("again-sentences.bin", "again-documents.bin", "hashes-documents.bin")
MEMORY = 4 << 20  # hashes sorted at a time
STEP = 1 << 16  # sentences copied at a time


@dataclass(frozen=True)
class Repeats:
    """For each sentence, and each document, whether an equal one came before it."""

    sentences: NDArray[np.bool_]
    documents: NDArray[np.bool_]

    @property
    def counts(self) -> dict[str, int]:
        return {"sentences": int(self.sentences.sum()), "documents": int(self.documents.sum())}


def found(part: Path, hashes: Path) -> Repeats:
    """Repeats of the corpus being built in `part`, whose sentences have these hashes."""
    each = np.memmap(hashes, np.uint64, "r")
    starts = np.fromfile(part / DOCUMENTS, np.int64)
    with (part / FILES[2]).open("wb") as out:
        for a, b in pairwise(starts):
            out.write(blake2b(each[a:b].tobytes(), digest_size=8).digest())
    whole = np.memmap(part / FILES[2], np.uint64, "r")
    return Repeats(again(each, part / FILES[0]), again(whole, part / FILES[1]))


def again(hashes: NDArray[np.uint64], path: Path) -> NDArray[np.bool_]:
    """True where the same value stands further up; sorted in shares of the range of values, each of bounded size."""
    flags = np.memmap(path, np.bool_, "w+", shape=(len(hashes),))
    shares = len(hashes) // MEMORY + 1
    for share in range(shares):
        where = _in_share(hashes, share, shares)
        order = where[np.argsort(hashes[where], kind="stable")]
        same = hashes[order[1:]] == hashes[order[:-1]]
        flags[order[1:][same]] = True
    return flags


def _in_share(hashes: NDArray[np.uint64], share: int, shares: int) -> NDArray[np.int64]:
    found = []
    for start in range(0, len(hashes), MEMORY):
        part = hashes[start : start + MEMORY]
        found.append(start + np.flatnonzero((part >> np.uint64(32)) * np.uint64(shares) >> np.uint64(32) == share))
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def left_out(part: Path, dtype: np.dtype[Any], repeats: Repeats, kinds: Sequence[str]) -> int:
    """Write the corpus again without its repeats, in new files beside the old; how many sentences it lacks."""
    documents = np.fromfile(part / DOCUMENTS, np.int64)
    gone = np.zeros(documents[-1], bool)
    if "documents" in kinds:
        gone |= np.repeat(np.asarray(repeats.documents), np.diff(documents))
    if "lines" in kinds:
        gone |= repeats.sentences
    _copied(part, dtype, ~gone)
    left = np.add.reduceat(~gone, documents[:-1], dtype=np.int64)
    np.append(0, left[left > 0].cumsum()).astype(np.int64).tofile(part / _new(DOCUMENTS))
    return int(gone.sum())


def swapped(part: Path) -> None:
    """New files take the place of the old; done again after a kill, it ends what is left."""
    for name in (TOKENS, SENTENCES, DOCUMENTS, WORDS):
        if (part / _new(name)).exists():
            (part / _new(name)).replace(part / name)


def _copied(part: Path, dtype: np.dtype[Any], kept: NDArray[np.bool_]) -> None:
    tokens, starts = np.memmap(part / TOKENS, dtype, "r"), np.memmap(part / SENTENCES, np.int64, "r")
    flags = np.memmap(part / WORDS, np.uint8, "r") if (part / WORDS).exists() else None
    total = 0
    with ExitStack() as files:
        out, ends = (files.enter_context((part / _new(name)).open("wb")) for name in (TOKENS, SENTENCES))
        writer = None if flags is None else store.MarkWriter(files.enter_context((part / _new(WORDS)).open("wb")))
        for first in range(0, len(kept), STEP):
            keep = kept[first : first + STEP]
            lengths = np.diff(starts[first : first + len(keep) + 1])
            a, b = int(starts[first]), int(starts[first + len(keep)])
            chosen = np.repeat(keep, lengths)
            out.write(tokens[a:b][chosen].tobytes())
            ends.write((total + lengths[keep].cumsum() - lengths[keep]).tobytes())
            total += int(lengths[keep].sum())
            if writer and flags is not None:
                writer.add(store.between(flags, a, b)[chosen])
        ends.write(np.int64(total).tobytes())
        if writer:
            writer.finish()


def _new(name: str) -> str:
    return name.replace(".bin", ".new")
