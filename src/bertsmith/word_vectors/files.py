"""What the files of vectors have in common: the header, what is too large to be true, and words in UTF-8."""

import codecs
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, get_args

import numpy as np

from ..errors import UserError
from ..tokenization.files import read_decompressed
from . import files as files_
from .keyed_vectors import KeyedVectors, Matrix

MAX_VECTOR_SIZE, MAX_WORD_BYTES = 65_536, 4_096  # numbers a vector, bytes a word: more is a damaged file


class Header(NamedTuple):
    num_words: int
    vector_size: int


def parse_header(line: bytes) -> Header | None:
    """Two whole numbers, if the line is that."""
    parts = line.split()
    return Header(*map(int, parts)) if len(parts) == 2 and all(p.isdigit() and len(p) < 19 for p in parts) else None


def decode_word(path: Path, word: bytes, location: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{path}, {location}: {format_excerpt(word)} is not UTF-8; leave the word out, or convert the file"
        ) from None


def format_excerpt(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return repr(text if len(text) <= 40 else text[:40] + "...")


def read_binary(path: Path) -> tuple[list[str], Matrix]:
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    head = bytes(data[:64]).partition(b"\n")[0]
    if (header := parse_header(head)) is None:
        raise UserError(
            f"{path}, byte 0: {format_excerpt(head)} is not the header of a binary file, two whole numbers in a line"
        )
    size, at, words = 4 * header.vector_size, len(head) + 1, list[str]()
    if not 1 <= header.vector_size <= MAX_VECTOR_SIZE or header.num_words < 1 or header.num_words * (size + 2) > len(data) + 1:
        raise UserError(f"{path} is truncated, or its header is wrong: {header.num_words:,} words of {header.vector_size:,} numbers take "
                       f"more than its {len(data):,} bytes")  # fmt: skip
    matrix = np.empty((header.num_words, header.vector_size), np.float32)
    for row in range(header.num_words):
        word, begin = _read_word(path, data, at, row)
        if begin + size > len(data):
            raise UserError(f"{path} ends at byte {len(data):,}, inside the vector of {word!r} (number {row + 1:,} of "
                           f"{header.num_words:,})")  # fmt: skip
        matrix[row] = np.frombuffer(data[begin : begin + size].tobytes(), "<f4")
        words.append(word)
        at = begin + size
    return words, matrix


def _read_word(path: Path, data: np.ndarray, offset: int, row: int) -> tuple[str, int]:
    """The word at a byte, and where its numbers begin; the original tool ends a vector with a newline, gensim does not."""
    window = data[offset : offset + 64].tobytes()
    if b" " not in window:
        window = data[offset : offset + MAX_WORD_BYTES + 2].tobytes()
    raw, space, _ = window.partition(b" ")
    word = raw.lstrip(b"\n")
    if not space or not word:
        raise UserError(f"{path}, byte {offset:,}: no word and space before the vector number {row + 1:,}; the file is damaged, or "
                       "not word2vec's binary format")  # fmt: skip
    return decode_word(path, word, f"byte {offset:,}"), offset + len(raw) + 1


def binary_rows(vectors: KeyedVectors) -> Iterator[bytes]:
    for word, row in zip(vectors.words, vectors.matrix.astype("<f4", copy=False), strict=True):
        yield word.encode() + b" " + row.tobytes()


ROWS_PER_BLOCK = 4_096  # rows parsed, or written, at once


def read_text(path: Path) -> tuple[list[str], Matrix]:
    words, blocks, header, width = list[str](), list[Matrix](), None, 0
    for number, lines in _read_numbered_lines(path):
        if number == 1:
            first, header = lines[0], parse_header(lines[0])
            lines, number = (lines[1:], 2) if header else (lines, 1)
            width = header.vector_size if header else len(lines[0].split(b" ")) - 1
            if not 1 <= width <= MAX_VECTOR_SIZE:
                raise UserError(f"{path}, line 1: {format_excerpt(first)} makes vectors of {width:,} "
                               "numbers; a line is a word and its numbers, parted by spaces")  # fmt: skip
        for at in range(0, len(lines), ROWS_PER_BLOCK):
            some, block = _parse_lines(path, lines[at : at + ROWS_PER_BLOCK], number + at, width)
            words += some
            blocks.append(block)
    if not words:
        raise UserError(f"{path} holds no vectors")
    if header and header.num_words != len(words):
        raise UserError(f"{path} is truncated, or its first line is wrong: that speaks of {header.num_words:,} words, and there are "
                       f"{len(words):,}")  # fmt: skip
    return words, np.concatenate(blocks)


def _read_numbered_lines(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Whole lines in pieces of a megabyte or so, with the number of the first; empty ones at the end are left out."""
    rest, number = b"", 1
    for data, _ in chain(read_decompressed(path), [(b"", 0)]):
        *lines, rest = (rest + data).split(b"\n") if data else ([rest, b""] if rest.strip() else [b""])
        if lines:
            yield number, [line.rstrip(b"\r ") for line in lines]
            number += len(lines)
        if len(rest) > MAX_WORD_BYTES + 32 * MAX_VECTOR_SIZE:
            raise UserError(f"{path}, line {number:,} has no end; it is not a text file of vectors")


def _parse_lines(path: Path, lines: list[bytes], first_line: int, vector_size: int) -> tuple[list[str], Matrix]:
    """Many lines at once; when something is wrong with them, one by one, to name the line."""
    pairs = [_split_line(line, vector_size) for line in lines]
    numbers = (
        np.fromstring(b" ".join(rest for _, rest in pairs), np.float32, sep=" ")
        if _is_well_formed(pairs, vector_size)
        else None
    )
    if numbers is None or len(numbers) != vector_size * len(lines):
        for at, line in enumerate(lines):
            _check_line(path, line, first_line + at, vector_size)
        raise UserError(
            f"{path}, lines {first_line:,} to {first_line + len(lines) - 1:,} are not words with {vector_size} numbers each"
        )
    return [decode_word(path, word, f"line {first_line + at:,}") for at, (word, _) in enumerate(pairs)], numbers.reshape(
        -1, vector_size
    )


def _split_line(line: bytes, vector_size: int) -> tuple[bytes, bytes]:
    """A word and its numbers; the word may hold spaces, as a few of GloVe's do."""
    if line.count(b" ") == vector_size:
        word, _, rest = line.partition(b" ")
        return word, rest
    word, *numbers = line.rsplit(b" ", vector_size)
    return word, b" ".join(numbers)


_NUMBER_BYTES = b"0123456789+-.eE "


def _is_well_formed(pairs: list[tuple[bytes, bytes]], vector_size: int) -> bool:
    return all(word and rest.count(b" ") == vector_size - 1 and not rest.translate(None, _NUMBER_BYTES) for word, rest in pairs)


def _check_line(path: Path, line: bytes, line_number: int, vector_size: int) -> None:
    word, rest = _split_line(line, vector_size)
    parts = rest.split(b" ") if rest else []
    if not word or len(parts) != vector_size:
        raise UserError(
            f"{path}, line {line_number:,}: {format_excerpt(line)} is not a word with {vector_size} numbers (it has {len(parts)})"
        )
    for part in parts:
        try:
            float(part)
        except ValueError:
            raise UserError(
                f"{path}, line {line_number:,}: {format_excerpt(part)} is no number, in the vector of {format_excerpt(word)}"
            ) from None
        if part.translate(None, _NUMBER_BYTES):  # nan, inf, 1_000
            raise UserError(
                f"{path}, line {line_number:,}: {format_excerpt(part)} is no finite number, in the vector of {format_excerpt(word)}"
            )


def text_rows(vectors: KeyedVectors) -> Iterator[bytes]:
    for at in range(0, len(vectors), ROWS_PER_BLOCK):
        numbers = (" ".join(map(str, row)) for row in vectors.matrix[at : at + ROWS_PER_BLOCK])
        named = zip(vectors.words[at : at + ROWS_PER_BLOCK], numbers, strict=True)
        yield "".join([f"{word} {row}\n" for word, row in named]).encode()


Format = Literal["text", "binary", "glove", "npy"]
FORMATS = get_args(Format)
_SEPARATORS = {" ", "\n"}
WORDS_SUFFIX = ".words.txt"  # beside an .npy: a word a line


def read_vectors(path: Path) -> KeyedVectors:
    """`.bin` is word2vec's binary, `.npy` a matrix with `NAME.words.txt` beside it, else text, packed (.gz .xz ...) or not.

    Text with two whole numbers in its first line is word2vec's, any other is GloVe's. Of a word that stands twice the
    first counts, as in gensim: published files have some.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}; give vectors as text, as .bin (word2vec) or as .npy")
    reader = {".bin": files_.read_binary, ".npy": _read_npy}.get(path.suffix, read_text)
    words, matrix = reader(path)
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise UserError(f"{path}: the vector of {words[row]!r} (number {row + 1:,}) holds what is no number; leave it out")
    first = {word: row for row, word in reversed(list(enumerate(words)))}
    kept = sorted(first.values())
    if len(kept) < len(words):
        words, matrix = [words[row] for row in kept], matrix[kept]
    return KeyedVectors(words, matrix)


def vector_files(path: Path) -> list[Path]:
    """What is read for vectors of that name: the file, and beside an .npy its words."""
    return [path, *([path.with_suffix(WORDS_SUFFIX)] if path.suffix == ".npy" else [])]


def infer_format(path: Path) -> Format:
    """What a name asks for: `.bin`, `.npy`, or text with word2vec's header."""
    return "binary" if path.suffix == ".bin" else "npy" if path.suffix == ".npy" else "text"


def write_vectors(path: Path, vectors: KeyedVectors, file_format: Format | None = None) -> None:
    """The bytes gensim writes (text, binary); numbers in text are the shortest that read back as they were.

    Words with spaces or line ends in them, which only .npy can hold, are refused.
    """
    file_format = file_format or infer_format(path)
    if (
        file_format != "npy"
        and (wrong := next((word for word in vectors.words if not word or _SEPARATORS & set(word)), None)) is not None
    ):
        raise UserError(f"the word {wrong!r} is empty, or holds what parts words in {file_format} files; write .npy")
    if file_format == "npy":
        _write_npy(path, vectors)
        return
    rows = files_.binary_rows(vectors) if file_format == "binary" else text_rows(vectors)
    head = [] if file_format == "glove" else [f"{len(vectors)} {vectors.vector_size}\n".encode()]
    _write_files({path: lambda file: file.writelines(chain(head, rows))})


def _read_npy(path: Path) -> tuple[list[str], Matrix]:
    beside = path.with_suffix(WORDS_SUFFIX)
    if not beside.is_file():
        raise UserError(f"{path} needs its words, one a line, in {beside}")
    try:
        matrix = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as .npy: {error}") from None
    names = beside.read_bytes().removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    if all(name.endswith(b"\r") for name in names):  # Windows' line ends
        names = [name[:-1] for name in names]
    words = [decode_word(beside, name, f"line {number:,}") for number, name in enumerate(names, 1)]
    if matrix.ndim != 2 or len(matrix) != len(words) or not np.issubdtype(matrix.dtype, np.floating) or not matrix.size:
        raise UserError(f"{path} holds {matrix.dtype} {list(matrix.shape)}, and {beside} {len(words):,} words; there is a row "
                       "of numbers a word")  # fmt: skip
    return words, matrix.astype(np.float32)


def _write_npy(path: Path, vectors: KeyedVectors) -> None:
    if wrong := next((word for word in vectors.words if "\n" in word), None):
        raise UserError(f"the word {wrong!r} holds a line end; a file of words has one a line")
    words = "".join(f"{word}\n" for word in vectors.words).encode()
    _write_files(
        {path: lambda file: np.save(file, vectors.matrix), path.with_suffix(WORDS_SUFFIX): lambda file: file.write(words)}
    )


def _write_files(files: Mapping[Path, Callable[[BinaryIO], object]]) -> None:
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
