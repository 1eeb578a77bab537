"""Word marks on disk: a bit a token, written and read without ever holding all of them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..artifacts import MANIFEST, read_json, verify_manifest
from ..errors import UserError
from ..rng import Stream, permutation
from ..tokenization.tokenizer import Tokenizer


class BitWriter:
    """Appends flags to a file as bits; up to seven wait in `spare` until their byte is full."""

    def __init__(self, file: Any, pending: bytes = b"") -> None:
        self.file, self.pending = file, pending

    def add(self, flags: NDArray[np.bool_]) -> None:
        flat = np.concatenate([np.frombuffer(self.pending, np.uint8), flags.astype(np.uint8)])
        full = len(flat) // 8 * 8
        self.file.write(np.packbits(flat[:full]).tobytes())
        self.pending = flat[full:].tobytes()

    def finish(self) -> None:
        self.file.write(np.packbits(np.frombuffer(self.pending, np.uint8)).tobytes())
        self.pending = b""


def unpack_range(packed_bits: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.bool_]:
    """The flags of tokens first..last-1."""
    flat = np.unpackbits(packed_bits[start >> 3 : (stop + 7) >> 3])
    return flat[start & 7 : (start & 7) + stop - start].astype(bool)


def unpack_positions(packed_bits: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The flags of the tokens at these positions."""
    return (packed_bits[positions >> 3] >> (7 - (positions & 7)).astype(np.uint8) & 1).astype(bool)


TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, WORD_STARTS_FILE = "tokens.bin", "sentences.bin", "documents.bin", "words.bin"


@dataclass(frozen=True)
class Corpus:
    """Sentence s is `tokens[sentences[s]:sentences[s + 1]]`; document d is sentences `documents[d]..documents[d + 1]`."""

    path: Path
    tokens: NDArray[Any]  # uint16, or uint32 for over 65,536 ids
    sentence_offsets: NDArray[np.int64]  # (sentences + 1,)
    document_offsets: NDArray[np.int64]  # (documents + 1,)
    word_starts: NDArray[np.uint8] | None  # a bit a token: it begins a word, where a segmenter said so
    card: dict[str, Any]

    @classmethod
    def open(cls, path: Path, verify_checksums: bool = True) -> "Corpus":
        """Maps the folder `prepare` made; `check` compares every checksum first (a second or so a gigabyte)."""
        if not (path / MANIFEST).exists():
            unfinished = path.with_name(path.name + ".part")
            hint = "its preparation was interrupted: run `prepare` again" if unfinished.exists() else "`prepare` makes one"
            raise UserError(f"{path} is not a corpus folder; {hint}")
        if verify_checksums:
            verify_manifest(path)
        card = read_json(path / "card.json")
        dtype = np.dtype(card["dtype"])
        words = _memmap(path / WORD_STARTS_FILE, np.uint8) if (path / WORD_STARTS_FILE).exists() else None
        return cls(
            path, _memmap(path / TOKENS_FILE, dtype), _memmap(path / SENTENCES_FILE, np.int64), _memmap(path / DOCUMENTS_FILE, np.int64),
            words, card,
        )  # fmt: skip

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.path)

    @cached_property
    def document_token_offsets(self) -> NDArray[np.int64]:
        """(documents + 1,): the token at which each document begins."""
        return self.sentence_offsets[self.document_offsets]

    def is_word_start(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For token positions: does a word begin there? By the segmenter if there was one, else by the pieces."""
        if self.word_starts is not None:
            return unpack_positions(self.word_starts, positions)
        begins = ~self.tokenizer.is_continuation[self.tokens[positions]]
        if self.tokenizer.word_start_prefix:  # by the space before it, which the first word of a sentence has not
            others = np.flatnonzero(~begins)
            begins[others] = (
                self.sentence_offsets[np.searchsorted(self.sentence_offsets, positions[others])] == positions[others]
            )
        return begins

    def split(self, validation_split: float, seed: int, min_sentences: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Document numbers to learn from, and those held out, of at least so many sentences: chosen by the seed alone."""
        count = len(self.document_offsets) - 1
        order = permutation(count, seed, Stream.VALIDATION_SPLIT)
        fit = order[np.diff(self.document_offsets)[order] >= min_sentences]
        wanted = (
            max(round(validation_split * count), 2) if validation_split > 0 and len(fit) >= 8 else 0
        )  # two: pairs need another document
        if wanted and count - wanted < 2:
            raise UserError(
                f"{self.path}: held_out={validation_split} of {count} documents leaves fewer than two to learn from; lower it"
            )
        held = np.zeros(count, bool)
        held[fit[:wanted]] = True
        return np.flatnonzero(~held), np.flatnonzero(held)


def _memmap(path: Path, dtype: Any) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
