"""Vectors in files: word2vec's text and binary formats, GloVe's text (no header), and .npy with the words beside it."""

import codecs
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import numpy as np

from ..errors import BadInput
from . import binary, lines
from .header import decoded
from .vectors import Matrix, Vectors

Format = Literal["text", "binary", "glove", "npy"]
FORMATS = get_args(Format)
_PARTING = {" ", "\n"}
WORDS = ".words.txt"  # beside an .npy: a word a line


def read(path: Path) -> Vectors:
    """`.bin` is word2vec's binary, `.npy` a matrix with `NAME.words.txt` beside it, else text, packed (.gz .xz ...) or not.

    Text with two whole numbers in its first line is word2vec's, any other is GloVe's. Of a word that stands twice the
    first counts, as in gensim: published files have some.
    """
    if not path.is_file():
        raise BadInput(f"there is no file {path}; give vectors as text, as .bin (word2vec) or as .npy")
    reader = {".bin": binary.read, ".npy": _array}.get(path.suffix, lines.read)
    words, matrix = reader(path)
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise BadInput(f"{path}: the vector of {words[row]!r} (number {row + 1:,}) holds what is no number; leave it out")
    first = {word: row for row, word in reversed(list(enumerate(words)))}
    kept = sorted(first.values())
    if len(kept) < len(words):
        words, matrix = [words[row] for row in kept], matrix[kept]
    return Vectors(words, matrix)


def files_of(path: Path) -> list[Path]:
    """What is read for vectors of that name: the file, and beside an .npy its words."""
    return [path, *([path.with_suffix(WORDS)] if path.suffix == ".npy" else [])]


def format_of(path: Path) -> Format:
    """What a name asks for: `.bin`, `.npy`, or text with word2vec's header."""
    return "binary" if path.suffix == ".bin" else "npy" if path.suffix == ".npy" else "text"


def write(path: Path, vectors: Vectors, form: Format | None = None) -> None:
    """The bytes gensim writes (text, binary); numbers in text are the shortest that read back as they were.

    Words with spaces or line ends in them, which only .npy can hold, are refused.
    """
    form = form or format_of(path)
    if (
        form != "npy"
        and (wrong := next((word for word in vectors.words if not word or _PARTING & set(word)), None)) is not None
    ):
        raise BadInput(f"the word {wrong!r} is empty, or holds what parts words in {form} files; write .npy")
    if form == "npy":
        _write_array(path, vectors)
        return
    rows = binary.rows(vectors) if form == "binary" else lines.rows(vectors)
    head = [] if form == "glove" else [f"{len(vectors)} {vectors.width}\n".encode()]
    _write({path: lambda file: file.writelines(chain(head, rows))})


def _array(path: Path) -> tuple[list[str], Matrix]:
    beside = path.with_suffix(WORDS)
    if not beside.is_file():
        raise BadInput(f"{path} needs its words, one a line, in {beside}")
    try:
        matrix = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadInput(f"{path} cannot be read as .npy: {error}") from None
    names = beside.read_bytes().removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    if all(name.endswith(b"\r") for name in names):  # Windows' line ends
        names = [name[:-1] for name in names]
    words = [decoded(beside, name, f"line {number:,}") for number, name in enumerate(names, 1)]
    if matrix.ndim != 2 or len(matrix) != len(words) or not np.issubdtype(matrix.dtype, np.floating) or not matrix.size:
        raise BadInput(f"{path} holds {matrix.dtype} {list(matrix.shape)}, and {beside} {len(words):,} words; there is a row "
                       "of numbers a word")  # fmt: skip
    return words, matrix.astype(np.float32)


def _write_array(path: Path, vectors: Vectors) -> None:
    if wrong := next((word for word in vectors.words if "\n" in word), None):
        raise BadInput(f"the word {wrong!r} holds a line end; a file of words has one a line")
    words = "".join(f"{word}\n" for word in vectors.words).encode()
    _write({path: lambda file: np.save(file, vectors.matrix), path.with_suffix(WORDS): lambda file: file.write(words)})


def _write(files: Mapping[Path, Callable[[BinaryIO], object]]) -> None:
    """All of them are written before the first has its name: none of new ones lies beside an old one for want of room."""
    parts = {path: path.with_name(path.name + ".part") for path in files}
    try:
        for path, fill in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with parts[path].open("wb") as file:
                fill(file)
        for path, part in parts.items():
            part.replace(path)
    except BaseException:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise
