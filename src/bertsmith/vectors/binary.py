"""word2vec's binary format: a header in text, then each word, a space and its numbers as they lie in memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import BadInput
from .header import LONGEST, WIDEST, decoded, header_of, shown
from .vectors import Matrix, Vectors


def read(path: Path) -> tuple[list[str], Matrix]:
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    head = bytes(data[:64]).partition(b"\n")[0]
    if (header := header_of(head)) is None:
        raise BadInput(f"{path}, byte 0: {shown(head)} is not the header of a binary file, two whole numbers in a line")
    size, at, words = 4 * header.width, len(head) + 1, list[str]()
    if not 1 <= header.width <= WIDEST or header.words < 1 or header.words * (size + 2) > len(data) + 1:
        raise BadInput(f"{path} is truncated, or its header is wrong: {header.words:,} words of {header.width:,} numbers take "
                       f"more than its {len(data):,} bytes")  # fmt: skip
    matrix = np.empty((header.words, header.width), np.float32)
    for row in range(header.words):
        word, begin = _word(path, data, at, row)
        if begin + size > len(data):
            raise BadInput(f"{path} ends at byte {len(data):,}, inside the vector of {word!r} (number {row + 1:,} of "
                           f"{header.words:,})")  # fmt: skip
        matrix[row] = np.frombuffer(data[begin : begin + size].tobytes(), "<f4")
        words.append(word)
        at = begin + size
    return words, matrix


def _word(path: Path, data: np.ndarray, at: int, row: int) -> tuple[str, int]:
    """The word at a byte, and where its numbers begin; the original tool ends a vector with a newline, gensim does not."""
    window = data[at : at + 64].tobytes()
    if b" " not in window:
        window = data[at : at + LONGEST + 2].tobytes()
    raw, space, _ = window.partition(b" ")
    word = raw.lstrip(b"\n")
    if not space or not word:
        raise BadInput(f"{path}, byte {at:,}: no word and space before the vector number {row + 1:,}; the file is damaged, or "
                       "not word2vec's binary format")  # fmt: skip
    return decoded(path, word, f"byte {at:,}"), at + len(raw) + 1


def rows(vectors: Vectors) -> Iterator[bytes]:
    for word, row in zip(vectors.words, vectors.matrix.astype("<f4", copy=False), strict=True):
        yield word.encode() + b" " + row.tobytes()
