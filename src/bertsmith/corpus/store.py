"""Word marks on disk: a bit a token, written and read without ever holding all of them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..artifacts import MANIFEST, read_json, verify
from ..errors import BadInput
from ..rng import Stream, shuffled
from ..tokenization.tokenizer import Tokenizer


class MarkWriter:
    """Appends flags to a file as bits; up to seven wait in `spare` until their byte is full."""

    def __init__(self, file: Any, spare: bytes = b"") -> None:
        self.file, self.spare = file, spare

    def add(self, flags: NDArray[np.bool_]) -> None:
        flat = np.concatenate([np.frombuffer(self.spare, np.uint8), flags.astype(np.uint8)])
        full = len(flat) // 8 * 8
        self.file.write(np.packbits(flat[:full]).tobytes())
        self.spare = flat[full:].tobytes()

    def finish(self) -> None:
        self.file.write(np.packbits(np.frombuffer(self.spare, np.uint8)).tobytes())
        self.spare = b""


def between(marks: NDArray[np.uint8], first: int, last: int) -> NDArray[np.bool_]:
    """The flags of tokens first..last-1."""
    flat = np.unpackbits(marks[first >> 3 : (last + 7) >> 3])
    return flat[first & 7 : (first & 7) + last - first].astype(bool)


def at(marks: NDArray[np.uint8], where: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The flags of the tokens at these positions."""
    return (marks[where >> 3] >> (7 - (where & 7)).astype(np.uint8) & 1).astype(bool)


TOKENS, SENTENCES, DOCUMENTS, WORDS = "tokens.bin", "sentences.bin", "documents.bin", "words.bin"


@dataclass(frozen=True)
class Corpus:
    """Sentence s is `tokens[sentences[s]:sentences[s + 1]]`; document d is sentences `documents[d]..documents[d + 1]`."""

    path: Path
    tokens: NDArray[Any]  # uint16, or uint32 for over 65,536 ids
    sentences: NDArray[np.int64]  # (sentences + 1,)
    documents: NDArray[np.int64]  # (documents + 1,)
    words: NDArray[np.uint8] | None  # a bit a token: it begins a word, where a segmenter said so
    card: dict[str, Any]

    @classmethod
    def open(cls, path: Path, check: bool = True) -> "Corpus":
        """Maps the folder `prepare` made; `check` compares every checksum first (a second or so a gigabyte)."""
        if not (path / MANIFEST).exists():
            unfinished = path.with_name(path.name + ".part")
            hint = "its preparation was interrupted: run `prepare` again" if unfinished.exists() else "`prepare` makes one"
            raise BadInput(f"{path} is not a corpus folder; {hint}")
        if check:
            verify(path)
        card = read_json(path / "card.json")
        dtype = np.dtype(card["dtype"])
        words = _mapped(path / WORDS, np.uint8) if (path / WORDS).exists() else None
        return cls(
            path, _mapped(path / TOKENS, dtype), _mapped(path / SENTENCES, np.int64), _mapped(path / DOCUMENTS, np.int64),
            words, card,
        )  # fmt: skip

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.path)

    @cached_property
    def borders(self) -> NDArray[np.int64]:
        """(documents + 1,): the token at which each document begins."""
        return self.sentences[self.documents]

    def starts_word(self, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For token positions: does a word begin there? By the segmenter if there was one, else by the pieces."""
        if self.words is not None:
            return at(self.words, where)
        begins = ~self.tokenizer.continues[self.tokens[where]]
        if self.tokenizer.marks_starts:  # by the space before it, which the first word of a sentence has not
            others = np.flatnonzero(~begins)
            begins[others] = self.sentences[np.searchsorted(self.sentences, where[others])] == where[others]
        return begins

    def split(self, held_out: float, seed: int, least: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Document numbers to learn from, and those held out, of at least so many sentences: chosen by the seed alone."""
        count = len(self.documents) - 1
        order = shuffled(count, seed, Stream.VALIDATION_SPLIT)
        fit = order[np.diff(self.documents)[order] >= least]
        wanted = max(round(held_out * count), 2) if held_out > 0 and len(fit) >= 8 else 0  # two: pairs need another document
        if wanted and count - wanted < 2:
            raise BadInput(
                f"{self.path}: held_out={held_out} of {count} documents leaves fewer than two to learn from; lower it"
            )
        held = np.zeros(count, bool)
        held[fit[:wanted]] = True
        return np.flatnonzero(~held), np.flatnonzero(held)


def _mapped(path: Path, dtype: Any) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
