"""Files of word vectors: word2vec's text and binary formats, GloVe's text format, and .npy with a list of words.

- read_vectors, write_vectors: any format, by file name
- read_text, read_binary, text_rows, binary_rows: one format
"""

import codecs
import filecmp
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, get_args

import numpy as np

from ..errors import UserError
from ..reading import open_regular, read_bytes
from ..reading.arrays import map_array, open_npy
from ..tokenization.files import read_decompressed
from ..writing import replace_files
from .keyed_vectors import KeyedVectors, Matrix

Format = Literal["text", "binary", "glove", "npy"]
FORMATS = get_args(Format)
_SEPARATORS = {" ", "\n"}
WORDS_SUFFIX = ".words.txt"  # of the word list beside an .npy file, one word per line


def read_vectors(path: Path) -> KeyedVectors:
    """Reads `.bin` (word2vec's binary), `.npy` (a matrix, with `NAME.words.txt` beside it), else text, compressed or not.

    Text with two integers in its first line is word2vec's, else GloVe's. Of duplicate words, which some published files
    have, the first is used, as in gensim.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}; give vectors as text, as .bin (word2vec) or as .npy")
    with open_regular(path) as file:
        start = file.read(2)
    if start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"):  # PROTO and its number
        raise UserError(
            f"{path} is a pickle, as gensim's save() writes it, which is never loaded, since it can run code; in gensim, run "
            f"KeyedVectors.load({path.name!r}).save_word2vec_format({path.with_suffix('.bin').name!r}, binary=True), and give "
            "that file"
        )
    reader = {".bin": read_binary, ".npy": _read_npy}.get(path.suffix, read_text)
    words, matrix = reader(path)
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise UserError(f"{path}: the vector of {words[row]!r} (row {row + 1:,}) has NaN or infinite values; remove it")
    first_row = {word: row for row, word in reversed(list(enumerate(words)))}
    rows = sorted(first_row.values())
    if len(rows) < len(words):
        words, matrix = [words[row] for row in rows], matrix[rows]
    return KeyedVectors(words, matrix)


def vector_files(path: Path) -> list[Path]:
    """Files that `read_vectors` reads: the file itself, and the word list of an .npy."""
    return [path, *([path.with_suffix(WORDS_SUFFIX)] if path.suffix == ".npy" else [])]


def infer_format(path: Path) -> Format:
    """Format by file name: `.bin`, `.npy`, else text with word2vec's header."""
    return "binary" if path.suffix == ".bin" else "npy" if path.suffix == ".npy" else "text"


def write_vectors(path: Path, vectors: KeyedVectors, file_format: Format | None = None, overwrite: bool = True) -> None:
    """Writes the same bytes as gensim (text, binary); floats in text are the shortest that round-trip.

    A UserError for words with spaces or line ends, except in .npy, and unless `overwrite`, for a file with other contents.
    """
    file_format = file_format or infer_format(path)
    if (
        file_format != "npy"
        and (bad_word := next((word for word in vectors.words if not word or _SEPARATORS & set(word)), None)) is not None
    ):
        raise UserError(f"the word {bad_word!r} is empty, or contains a separator of {file_format} files; write .npy")
    if file_format == "npy":
        _write_npy(path, vectors, overwrite)
        return
    rows = binary_rows(vectors) if file_format == "binary" else text_rows(vectors)
    header_lines = [] if file_format == "glove" else [f"{len(vectors)} {vectors.vector_size}\n".encode()]
    _write_files({path: lambda file: file.writelines(chain(header_lines, rows))}, overwrite)


MAX_VECTOR_SIZE, MAX_WORD_BYTES = 65_536, 4_096  # larger values mean a damaged file
MAX_WORDS_BYTES = 1 << 30  # of the words of a .npy file


class Header(NamedTuple):
    """First line of word2vec's formats."""

    num_words: int
    vector_size: int


def parse_header(line: bytes) -> Header | None:
    """Parses `num_words vector_size`; None if the line is anything else."""
    parts = line.split()
    return Header(*map(int, parts)) if len(parts) == 2 and all(part.isdigit() and len(part) < 19 for part in parts) else None


def decode_word(path: Path, word: bytes, location: str) -> str:
    """Decodes UTF-8; the error names the file and `location`."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{path}, {location}: {format_excerpt(word)} is not UTF-8; remove the word, or convert the file to UTF-8"
        ) from None


def format_excerpt(value: object) -> str:
    """repr of at most 40 characters, for error messages."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return repr(text if len(text) <= 40 else text[:40] + "...")


def read_binary(path: Path) -> tuple[list[str], Matrix]:
    """word2vec's binary format: a header line, then `word`, a space and little-endian float32 values."""
    data = map_array(path, np.uint8)
    first_line = bytes(data[:64]).partition(b"\n")[0]
    if (header := parse_header(first_line)) is None:
        raise UserError(
            f"{path}, byte 0: {format_excerpt(first_line)} is not the header of a binary file (number of words and vector size)"
        )
    row_bytes, offset, words = 4 * header.vector_size, len(first_line) + 1, list[str]()
    if (
        not 1 <= header.vector_size <= MAX_VECTOR_SIZE
        or header.num_words < 1
        or header.num_words * (row_bytes + 2) > len(data) + 1
    ):
        raise UserError(f"{path} is truncated, or its header is wrong: {header.num_words:,} vectors "
                       f"of size {header.vector_size:,} take more than its {len(data):,} bytes")  # fmt: skip
    matrix = np.empty((header.num_words, header.vector_size), np.float32)
    for row in range(header.num_words):
        word, values_at = _read_word(path, data, offset, row)
        if values_at + row_bytes > len(data):
            raise UserError(f"{path} is truncated: it ends at byte {len(data):,}, in the vector of {word!r} "
                           f"({row + 1:,} of {header.num_words:,})")  # fmt: skip
        matrix[row] = np.frombuffer(data[values_at : values_at + row_bytes].tobytes(), "<f4")
        words.append(word)
        offset = values_at + row_bytes
    if data[offset : offset + 2].tobytes() not in (b"", b"\n"):
        raise UserError(f"{path} is damaged, or its header is wrong: {len(data) - offset:,} bytes follow the last of its "
                       f"{header.num_words:,} vectors")  # fmt: skip
    return words, matrix


def _read_word(path: Path, data: np.ndarray, offset: int, row: int) -> tuple[str, int]:
    """The word at a byte offset, and the offset of its values. word2vec.c ends a vector with a newline, gensim does not."""
    window = data[offset : offset + 64].tobytes()
    if b" " not in window:
        window = data[offset : offset + MAX_WORD_BYTES + 2].tobytes()
    raw_word, space, _ = window.partition(b" ")
    word = raw_word.lstrip(b"\n")
    if not space or not word:
        raise UserError(f"{path}, byte {offset:,}: no word before vector {row + 1:,}; the file is damaged, or not in "
                       "word2vec's binary format")  # fmt: skip
    return decode_word(path, word, f"byte {offset:,}"), offset + len(raw_word) + 1


def binary_rows(vectors: KeyedVectors) -> Iterator[bytes]:
    """Rows of word2vec's binary format."""
    for word, row in zip(vectors.words, vectors.matrix.astype("<f4", copy=False), strict=True):
        yield word.encode() + b" " + row.tobytes()


ROWS_PER_BLOCK = 4_096  # rows parsed or written at once


def read_text(path: Path) -> tuple[list[str], Matrix]:
    """Text, compressed or not: a word and its values per line, with word2vec's header or without it (GloVe)."""
    words, blocks, header, vector_size = list[str](), list[Matrix](), None, 0
    for line_number, lines in _read_numbered_lines(path):
        if line_number == 1:
            first_line, header = lines[0], parse_header(lines[0])
            lines, line_number = (lines[1:], 2) if header else (lines, 1)
            vector_size = header.vector_size if header else len(lines[0].split(b" ")) - 1
            if not 1 <= vector_size <= MAX_VECTOR_SIZE:
                raise UserError(f"{path}, line 1: {format_excerpt(first_line)} gives a vector size of "
                               f"{vector_size:,}; a line must be a word and its values, separated by spaces")  # fmt: skip
        for start in range(0, len(lines), ROWS_PER_BLOCK):
            block_words, block = _parse_lines(path, lines[start : start + ROWS_PER_BLOCK], line_number + start, vector_size)
            words += block_words
            blocks.append(block)
    if not words:
        raise UserError(f"{path} contains no vectors")
    if header and header.num_words != len(words):
        raise UserError(f"{path} is truncated, or its header is wrong: it says {header.num_words:,} words, "
                       f"but there are {len(words):,}")  # fmt: skip
    return words, np.concatenate(blocks)


def _read_numbered_lines(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first line, complete lines) in blocks of about a megabyte; empty lines at the end are left out."""
    partial_line, line_number = b"", 1
    for chunk, _ in chain(read_decompressed(path), [(b"", 0)]):
        *lines, partial_line = (
            (partial_line + chunk).split(b"\n") if chunk else ([partial_line, b""] if partial_line.strip() else [b""])
        )
        if lines:
            yield line_number, [line.rstrip(b"\r ") for line in lines]
            line_number += len(lines)
        if len(partial_line) > MAX_WORD_BYTES + 32 * MAX_VECTOR_SIZE:
            raise UserError(f"{path}, line {line_number:,} is too long; this is not a text file of word vectors")


def _parse_lines(path: Path, lines: list[bytes], first_line: int, vector_size: int) -> tuple[list[str], Matrix]:
    """Parses many lines at once; if that fails, checks them one by one to name the line in the error."""
    pairs = [_split_line(line, vector_size) for line in lines]
    values = (
        np.fromstring(b" ".join(value_text for _, value_text in pairs), np.float32, sep=" ")
        if _is_well_formed(pairs, vector_size)
        else None
    )
    if values is None or len(values) != vector_size * len(lines):
        for i, line in enumerate(lines):
            _check_line(path, line, first_line + i, vector_size)
        raise UserError(
            f"{path}, lines {first_line:,} to {first_line + len(lines) - 1:,} are not a word and {vector_size} values each"
        )
    return [decode_word(path, word, f"line {first_line + i:,}") for i, (word, _) in enumerate(pairs)], values.reshape(
        -1, vector_size
    )


def _split_line(line: bytes, vector_size: int) -> tuple[bytes, bytes]:
    """A word and its values; the word may contain spaces, as a few of GloVe's do."""
    if line.count(b" ") == vector_size:
        word, _, value_text = line.partition(b" ")
        return word, value_text
    word, *values = line.rsplit(b" ", vector_size)
    return word, b" ".join(values)


_NUMBER_BYTES = b"0123456789+-.eE "


def _is_well_formed(pairs: list[tuple[bytes, bytes]], vector_size: int) -> bool:
    return all(
        word and value_text.count(b" ") == vector_size - 1 and not value_text.translate(None, _NUMBER_BYTES)
        for word, value_text in pairs
    )


def _check_line(path: Path, line: bytes, line_number: int, vector_size: int) -> None:
    word, value_text = _split_line(line, vector_size)
    values = value_text.split(b" ") if value_text else []
    if not word or len(values) != vector_size:
        raise UserError(
            f"{path}, line {line_number:,}: {format_excerpt(line)} is not a word and {vector_size} values "
            f"(it has {len(values)})"
        )
    for value in values:
        try:
            float(value)
        except ValueError:
            raise UserError(
                f"{path}, line {line_number:,}: {format_excerpt(value)}, in the vector of {format_excerpt(word)}, is not a "
                "number"
            ) from None
        if value.translate(None, _NUMBER_BYTES):  # nan, inf, 1_000
            raise UserError(
                f"{path}, line {line_number:,}: {format_excerpt(value)}, in the vector of {format_excerpt(word)}, "
                "is not a finite number"
            )


def text_rows(vectors: KeyedVectors) -> Iterator[bytes]:
    """Lines of the text formats, in blocks."""
    for start in range(0, len(vectors), ROWS_PER_BLOCK):
        lines = (" ".join(map(str, row)) for row in vectors.matrix[start : start + ROWS_PER_BLOCK])
        pairs = zip(vectors.words[start : start + ROWS_PER_BLOCK], lines, strict=True)
        yield "".join([f"{word} {row}\n" for word, row in pairs]).encode()


def _read_npy(path: Path) -> tuple[list[str], Matrix]:
    words_path = path.with_suffix(WORDS_SUFFIX)
    if not words_path.is_file():
        raise UserError(f"{path} needs a list of its words, one per line, in {words_path}")
    matrix = open_npy(path)
    lines = read_bytes(words_path, MAX_WORDS_BYTES).removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    if all(line.endswith(b"\r") for line in lines):  # CRLF
        lines = [line[:-1] for line in lines]
    words = [decode_word(words_path, line, f"line {line_number:,}") for line_number, line in enumerate(lines, 1)]
    if matrix.ndim != 2 or len(matrix) != len(words) or not np.issubdtype(matrix.dtype, np.floating) or not matrix.size:
        raise UserError(f"{path} is {matrix.dtype} {list(matrix.shape)}, and {words_path} has {len(words):,} words; "
                       "the matrix must be floating-point, with one row per word")  # fmt: skip
    return words, np.array(matrix, np.float32)


def _write_npy(path: Path, vectors: KeyedVectors, overwrite: bool) -> None:
    if bad_word := next((word for word in vectors.words if "\n" in word), None):
        raise UserError(f"the word {bad_word!r} contains a line break, and the list of words has one per line; rename it")
    words = "".join(f"{word}\n" for word in vectors.words).encode()
    _write_files(
        {path: lambda file: np.save(file, vectors.matrix), path.with_suffix(WORDS_SUFFIX): lambda file: file.write(words)},
        overwrite,
    )


def _write_files(files: Mapping[Path, Callable[[BinaryIO], object]], overwrite: bool) -> None:
    """Writes all files under temporary names, then renames them, so that a full disk leaves no mix of old and new files."""
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    with replace_files(*files) as temp_files:
        for (path, write), file in zip(files.items(), temp_files, strict=True):
            write(file)
            file.flush()
            if not overwrite and path.exists() and not filecmp.cmp(path, file.name, shallow=False):
                raise UserError(f"{path} exists with other contents; choose another out, or set overwrite=true to replace it")
