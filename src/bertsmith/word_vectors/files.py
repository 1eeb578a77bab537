"""What the files of vectors have in common: the header, what is too large to be true, and words in UTF-8."""

import codecs
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, get_args

import numpy as np

from ..errors import BadInput
from ..tokenization.files import unpacked
from . import files as files_
from .keyed_vectors import Matrix, Vectors

WIDEST, LONGEST = 65_536, 4_096  # numbers a vector, bytes a word: more is a damaged file


class Header(NamedTuple):
    words: int
    width: int


def header_of(line: bytes) -> Header | None:
    """Two whole numbers, if the line is that."""
    parts = line.split()
    return Header(*map(int, parts)) if len(parts) == 2 and all(p.isdigit() and len(p) < 19 for p in parts) else None


def decoded(path: Path, word: bytes, place: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path}, {place}: {shown(word)} is not UTF-8; leave the word out, or convert the file") from None


def shown(what: object) -> str:
    text = what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)
    return repr(text if len(text) <= 40 else text[:40] + "...")


def read_binary(path: Path) -> tuple[list[str], Matrix]:
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


def binary_rows(vectors: Vectors) -> Iterator[bytes]:
    for word, row in zip(vectors.words, vectors.matrix.astype("<f4", copy=False), strict=True):
        yield word.encode() + b" " + row.tobytes()


BLOCK = 4_096  # rows parsed, or written, at once


def read_text(path: Path) -> tuple[list[str], Matrix]:
    words, blocks, header, width = list[str](), list[Matrix](), None, 0
    for number, lines in _numbered(path):
        if number == 1:
            first, header = lines[0], header_of(lines[0])
            lines, number = (lines[1:], 2) if header else (lines, 1)
            width = header.width if header else len(lines[0].split(b" ")) - 1
            if not 1 <= width <= WIDEST:
                raise BadInput(f"{path}, line 1: {shown(first)} makes vectors of {width:,} "
                               "numbers; a line is a word and its numbers, parted by spaces")  # fmt: skip
        for at in range(0, len(lines), BLOCK):
            some, block = _parsed(path, lines[at : at + BLOCK], number + at, width)
            words += some
            blocks.append(block)
    if not words:
        raise BadInput(f"{path} holds no vectors")
    if header and header.words != len(words):
        raise BadInput(f"{path} is truncated, or its first line is wrong: that speaks of {header.words:,} words, and there are "
                       f"{len(words):,}")  # fmt: skip
    return words, np.concatenate(blocks)


def _numbered(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Whole lines in pieces of a megabyte or so, with the number of the first; empty ones at the end are left out."""
    rest, number = b"", 1
    for data, _ in chain(unpacked(path), [(b"", 0)]):
        *lines, rest = (rest + data).split(b"\n") if data else ([rest, b""] if rest.strip() else [b""])
        if lines:
            yield number, [line.rstrip(b"\r ") for line in lines]
            number += len(lines)
        if len(rest) > LONGEST + 32 * WIDEST:
            raise BadInput(f"{path}, line {number:,} has no end; it is not a text file of vectors")


def _parsed(path: Path, lines: list[bytes], number: int, width: int) -> tuple[list[str], Matrix]:
    """Many lines at once; when something is wrong with them, one by one, to name the line."""
    pairs = [_parted(line, width) for line in lines]
    numbers = np.fromstring(b" ".join(rest for _, rest in pairs), np.float32, sep=" ") if _clean(pairs, width) else None
    if numbers is None or len(numbers) != width * len(lines):
        for at, line in enumerate(lines):
            _check(path, line, number + at, width)
        raise BadInput(f"{path}, lines {number:,} to {number + len(lines) - 1:,} are not words with {width} numbers each")
    return [decoded(path, word, f"line {number + at:,}") for at, (word, _) in enumerate(pairs)], numbers.reshape(-1, width)


def _parted(line: bytes, width: int) -> tuple[bytes, bytes]:
    """A word and its numbers; the word may hold spaces, as a few of GloVe's do."""
    if line.count(b" ") == width:
        word, _, rest = line.partition(b" ")
        return word, rest
    word, *numbers = line.rsplit(b" ", width)
    return word, b" ".join(numbers)


_DIGITS = b"0123456789+-.eE "


def _clean(pairs: list[tuple[bytes, bytes]], width: int) -> bool:
    return all(word and rest.count(b" ") == width - 1 and not rest.translate(None, _DIGITS) for word, rest in pairs)


def _check(path: Path, line: bytes, number: int, width: int) -> None:
    word, rest = _parted(line, width)
    parts = rest.split(b" ") if rest else []
    if not word or len(parts) != width:
        raise BadInput(f"{path}, line {number:,}: {shown(line)} is not a word with {width} numbers (it has {len(parts)})")
    for part in parts:
        try:
            float(part)
        except ValueError:
            raise BadInput(f"{path}, line {number:,}: {shown(part)} is no number, in the vector of {shown(word)}") from None
        if part.translate(None, _DIGITS):  # nan, inf, 1_000
            raise BadInput(f"{path}, line {number:,}: {shown(part)} is no finite number, in the vector of {shown(word)}")


def text_rows(vectors: Vectors) -> Iterator[bytes]:
    for at in range(0, len(vectors), BLOCK):
        numbers = (" ".join(map(str, row)) for row in vectors.matrix[at : at + BLOCK])
        named = zip(vectors.words[at : at + BLOCK], numbers, strict=True)
        yield "".join([f"{word} {row}\n" for word, row in named]).encode()


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
    reader = {".bin": files_.read_binary, ".npy": _array}.get(path.suffix, read_text)
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
    rows = files_.binary_rows(vectors) if form == "binary" else text_rows(vectors)
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
