"""The corpus on disk: memory-mapped token ids, sentence and document offsets, and word-start flags (one bit per token)."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..artifacts import CORPUS_TOKENS, read_object, require_kind, verify_manifest
from ..errors import UserError
from ..reading.arrays import map_array
from ..rng import Stream, permutation
from ..tokenization.tokenizer import Tokenizer

TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, WORD_STARTS_FILE = CORPUS_TOKENS, "sentences.bin", "documents.bin", "words.bin"


@dataclass(frozen=True)
class Corpus:
    """A memory-mapped corpus folder.

    Sentence s is tokens[sentence_offsets[s] : sentence_offsets[s + 1]]; document d is the sentences document_offsets[d] to
    document_offsets[d + 1].
    """

    path: Path
    tokens: NDArray[Any]  # uint16, or uint32 for vocabularies over 65,536
    sentence_offsets: NDArray[np.int64]  # (sentences + 1,)
    document_offsets: NDArray[np.int64]  # (documents + 1,)
    word_starts: NDArray[np.uint8] | None  # packed bits, one per token: it starts a word; with a segmenter only
    card: dict[str, Any]

    @classmethod
    def open(cls, path: Path, verify_checksums: bool = True) -> "Corpus":
        """Map a folder written by `prepare`; `verify_checksums` takes about a second per gigabyte."""
        require_kind(path, "corpus")
        if verify_checksums:
            verify_manifest(path)
        card = read_object(path / "card.json")
        if (dtype := card.get("dtype")) not in ("uint16", "uint32"):
            raise UserError(f"{path / 'card.json'} is damaged: dtype is {dtype!r}; create {path} again")
        word_starts = map_array(path / WORD_STARTS_FILE, np.uint8) if (path / WORD_STARTS_FILE).exists() else None
        corpus = cls(
            path,
            map_array(path / TOKENS_FILE, dtype),
            map_array(path / SENTENCES_FILE, np.int64),
            map_array(path / DOCUMENTS_FILE, np.int64),
            word_starts,
            card,
        )
        corpus._check_sizes()
        return corpus

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.path)

    @cached_property
    def document_token_offsets(self) -> NDArray[np.int64]:
        """(documents + 1,): position of the first token of each document."""
        return self.sentence_offsets[self.document_offsets]

    def _check_sizes(self) -> None:
        """Raise unless the files belong together; only their ends are read."""
        for offsets, size, file in (
            (self.sentence_offsets, len(self.tokens), SENTENCES_FILE),
            (self.document_offsets, len(self.sentence_offsets) - 1, DOCUMENTS_FILE),
        ):
            if not len(offsets) or offsets[0] != 0 or offsets[-1] != size:
                raise UserError(
                    f"{self.path / file} is damaged: its offsets do not run from 0 to {size:,}; create {self.path} again"
                )
        if self.word_starts is not None and len(self.word_starts) != (len(self.tokens) + 7) // 8:
            raise UserError(
                f"{self.path / WORD_STARTS_FILE} is damaged: it has not one bit per token; create {self.path} again"
            )

    def is_word_start(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the tokens at these positions start a word: by the segmenter if there was one, else by the tokens."""
        if self.word_starts is not None:
            return unpack_positions(self.word_starts, positions)
        is_start = ~self.tokenizer.is_continuation[self.tokens[positions]]
        # Word starts are marked by a space, which the first word of a sentence does not have.
        if self.tokenizer.word_start_prefix:
            candidates = np.flatnonzero(~is_start)
            is_start[candidates] = (
                self.sentence_offsets[np.searchsorted(self.sentence_offsets, positions[candidates])] == positions[candidates]
            )
        return is_start

    def split(self, validation_split: float, seed: int, min_sentences: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Document indices for (training, validation), determined by the seed; validation documents have `min_sentences`."""
        count = len(self.document_offsets) - 1
        order = permutation(count, seed, Stream.VALIDATION_SPLIT)
        eligible = order[np.diff(self.document_offsets)[order] >= min_sentences]
        # At least two: sentence pairs need another document.
        num_validation = max(round(validation_split * count), 2) if validation_split > 0 and len(eligible) >= 8 else 0
        if num_validation and count - num_validation < 2:
            raise UserError(
                f"{self.path}: validation_split={validation_split} of {count} documents leaves fewer than two for training; "
                "lower it"
            )
        is_validation = np.zeros(count, bool)
        is_validation[eligible[:num_validation]] = True
        return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


class BitWriter:
    """Appends flags to a file as bits; up to seven are held in `pending` until their byte is full."""

    def __init__(self, file: Any, pending: bytes = b"") -> None:
        self.file, self.pending = file, pending

    def add(self, flags: NDArray[np.bool_]) -> None:
        bits = np.concatenate([np.frombuffer(self.pending, np.uint8), flags.astype(np.uint8)])
        num_full = len(bits) // 8 * 8
        self.file.write(np.packbits(bits[:num_full]).tobytes())
        self.pending = bits[num_full:].tobytes()

    def finish(self) -> None:
        self.file.write(np.packbits(np.frombuffer(self.pending, np.uint8)).tobytes())
        self.pending = b""


def unpack_range(packed_bits: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.bool_]:
    """The flags of positions start to stop - 1."""
    bits = np.unpackbits(packed_bits[start >> 3 : (stop + 7) >> 3])
    return bits[start & 7 : (start & 7) + stop - start].astype(bool)


def unpack_positions(packed_bits: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The flags at these positions."""
    return (packed_bits[positions >> 3] >> (7 - (positions & 7)).astype(np.uint8) & 1).astype(bool)
