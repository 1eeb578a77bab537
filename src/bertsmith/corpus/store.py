"""The corpus on disk: memory-mapped token ids, sentence and document offsets, and word-start flags (one bit per token)."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..artifacts import CORPUS_TOKENS, read_object, require_kind, verify_manifest
from ..errors import UserError
from ..reading.arrays import map_array
from ..rng import Stream, permutation
from ..tokenization.tokenizer import Tokenizer

TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, WORD_STARTS_FILE = CORPUS_TOKENS, "sentences.bin", "documents.bin", "words.bin"


CHECK_CHUNK = 1 << 22  # elements read at once by `check_contents`

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Source(msgspec.Struct):
    name: str
    bytes: _Count


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
        card = read_card(path)
        dtype = card["dtype"]
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
        if verify_checksums:
            corpus.check_contents()
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

    def check_contents(self) -> None:
        """Raise unless tokens are ids of the vocabulary and offsets do not decrease; takes a tenth of the checksums' time."""
        vocab_size = self.card["vocab_size"]
        for start in range(0, len(self.tokens), CHECK_CHUNK):
            if (last := int(self.tokens[start : start + CHECK_CHUNK].max())) >= vocab_size:
                raise UserError(
                    f"{self.path / TOKENS_FILE} is damaged: it has the id {last:,} in a vocabulary of {vocab_size:,}; "
                    f"create {self.path} again"
                )
        for offsets, file in ((self.sentence_offsets, SENTENCES_FILE), (self.document_offsets, DOCUMENTS_FILE)):
            for start in range(0, len(offsets), CHECK_CHUNK):
                chunk = offsets[start : start + CHECK_CHUNK + 1]
                if (chunk[1:] < chunk[:-1]).any():
                    raise UserError(f"{self.path / file} is damaged: its offsets are not in order; create {self.path} again")

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


def read_card(folder: Path) -> dict[str, Any]:
    """The card.json of a corpus."""
    return check_card(read_object(folder / "card.json"), folder / "card.json")


def check_card(card: Any, path: Path) -> dict[str, Any]:
    """The card of a corpus, also where that of a model holds it, if the keys that are read have values of their types."""
    try:
        msgspec.convert(card, _CardFields)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is damaged: {error}; create {path.parent} again") from None
    return dict(card)


class _CardFields(msgspec.Struct):
    """The keys of card.json that are read."""

    dtype: Literal["uint16", "uint32"]
    documents: _Count
    sentences: _Count
    tokens: _Count
    vocab_size: _Count
    max_sentence_length: _Count
    sentence_lengths: dict[str, _Count]
    document_lengths: dict[str, _Count]
    tokenizer_fingerprint: str
    identity: str
    has_word_boundaries: bool
    unknown_rate: Annotated[float, msgspec.Meta(ge=0, le=1)]
    unigram_entropy: Annotated[float, msgspec.Meta(ge=0, le=100)]
    warnings: list[str]
    bytes: _Count | None = None
    unknown_bytes: _Count | None = None
    duplicates: dict[str, _Count] = {}
    sources: list[_Source] = []


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
