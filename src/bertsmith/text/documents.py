"""Text files, packed or not, as one stream of documents in blocks of a few million characters, in constant memory."""

import bz2
import codecs
import glob
import gzip
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from ..errors import BadInput

PIECE = 1 << 20  # bytes unpacked at a time
LONGEST_GAP = 2 << 20  # white space in one line beyond this is dropped; at least a piece, so that pieces leave no trace
LONGEST_RECORD = 256 << 20  # bytes of one JSON line, which has to be in memory whole

_TEXT, _LINES, _PACKED = {"", ".txt", ".text", ".md"}, {".jsonl", ".ndjson", ".json"}, {".gz", ".xz", ".bz2", ".zst"}
_KNOWN = ".txt .text .md (or none) and .jsonl .ndjson .json, alone or packed (.gz .xz .bz2 .zst); .parquet"
_BLANK = re.compile(r"\n\s*\n")
_LINE_END = re.compile(rb"\r\n?|\n")
_AFTER_FORCED_CUT = re.compile(r"[^\S\n]*(\n{0,2})")
_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))


@dataclass(frozen=True)
class Block:
    """Lines parted by a newline, documents by an empty line; no other empty line, no carriage return."""

    text: str
    ends: bool  # the last document is complete; if not, it goes on in the next block
    read: int  # bytes of the files, as they lie on disk, read so far: for progress
    source: str  # the file of the first line


def found(texts: Sequence[str]) -> list[Path]:
    """The files that paths, folders (what can be read in them, sorted) and patterns such as `*.txt.gz` name, each once."""
    if not all(texts) or not texts:
        raise BadInput("no texts are given; name files, folders or patterns, such as texts=wiki/*.txt.gz")
    return list(dict.fromkeys(path for text in texts for path in _named(text)))


def size(paths: Sequence[Path]) -> int:
    """Bytes on disk."""
    return sum(path.stat().st_size for path in paths)


def documents(paths: Sequence[Path]) -> Iterator[list[str]]:
    """The lines of each document; a document is in memory whole, so corpora of any size are better read by `blocks`."""
    lines: list[str] = []
    for block in blocks(paths):
        *whole, last = block.text.split("\n\n")
        for document in whole:
            yield lines + document.split("\n")
            lines = []
        lines += last.split("\n")
        if block.ends:
            yield lines
            lines = []


def blocks(paths: Sequence[Path], size: int = 4 << 20) -> Iterator[Block]:
    """Blocks of at most `size` characters, the same for the same files; the end of a file ends a document.

    They are cut between documents; a document longer than `size` between its lines, a longer line at a space.
    """
    text, base, files = "", 0, deque[tuple[int, str]]()  # `base`: where in the whole stream `text` begins
    for piece in _tidied(paths):
        gap = piece.gap if text else piece.gap.lstrip("\n")
        if not files or files[-1][1] != piece.source:
            files.append((base + len(text) + gap.rfind("\n") + 1, piece.source))
        text += gap + piece.body
        at, waiting = 0, size if piece.body else 0
        while len(text) - at > waiting:
            end, ends, following = _cut(text, at, size)
            while len(files) > 1 and files[1][0] <= base + at:
                files.popleft()
            if not (block := text[at:end]).isspace():  # it is where a line begins with more white space than a block holds
                yield Block(block, ends, piece.read, files[0][1])
            at = following
        text, base = text[at:], base + at


def _cut(text: str, at: int, size: int) -> tuple[int, bool, int]:
    """Where the block that begins at `at` ends, whether that ends a document, and where the next block begins."""
    for mark, ends in (("\n\n", True), ("\n", False)):
        end = text.rfind(mark, at, at + size + len(mark))
        if end > at:
            return end, ends, end + len(mark)
    end = text.rfind(" ", at, at + size + 1)
    if end <= at or text[at:end].isspace():
        end = at + size
    skipped = _AFTER_FORCED_CUT.match(text, end)
    assert skipped
    return end, skipped[1] == "\n\n", skipped.end()


class _Piece(NamedTuple):
    gap: str  # white space before the body
    body: str  # begins and ends with something to see; empty at the end of the stream
    read: int
    source: str


def _tidied(paths: Sequence[Path]) -> Iterator[_Piece]:
    """The stream of all files without its empty lines but one between documents, wherever the pieces were cut.

    White space at the end of a piece waits for the next one, which decides what it means.
    """
    held, done, path = "\n", 0, None
    for path in paths:
        for raw, read in _pieces(path):
            whole = raw.rstrip()
            body = whole.lstrip()
            if not body:
                held = _squeezed(held + raw)
                continue
            gap = _squeezed(held + whole[: len(whole) - len(body)])
            held = _squeezed(raw[len(whole) :])
            yield _Piece(gap, _BLANK.sub("\n\n", body), done + read, str(path))
        held, done = _squeezed(held + "\n\n"), done + path.stat().st_size
    if path:
        yield _Piece(held.partition("\n")[0] + "\n\n", "", done, str(path))


def _squeezed(gap: str) -> str:
    gap = _BLANK.sub("\n\n", gap)
    return gap if len(gap) <= LONGEST_GAP else "\n".join(part[:LONGEST_GAP] for part in gap.split("\n"))


def _pieces(path: Path) -> Iterator[tuple[str, int]]:
    """Text with newlines only, and the bytes of the file read so far."""
    read = {"parquet": _parquet, "lines": _records, "text": _text}[_format(path)]
    empty = True
    for text, position in read(path):
        empty = empty and (not text or text.isspace())
        yield text, position
    if empty:
        raise BadInput(f"{path} is empty: there is no text in it; leave it out, or make it again")


def _text(path: Path) -> Iterator[tuple[str, int]]:
    left, carriage, offset, line = b"", "", 0, 1
    for data, position in chain(_bytes(path), [(b"", path.stat().st_size)]):
        joined = left + data
        try:
            text, used = codecs.utf_8_decode(joined, "strict", not data)
        except UnicodeDecodeError as error:
            line += len(_LINE_END.findall(carriage.encode() + joined[: error.start]))
            raise _not_utf8(path, f"byte {offset + error.start:,} (line {line:,})", joined[error.start]) from None
        text = carriage + (text if offset else text.removeprefix("\ufeff"))
        left, offset = joined[used:], offset + used
        text, carriage = (text[:-1], "\r") if text.endswith("\r") else (text, "")  # half of a line end, perhaps
        text = _newlines(text)
        line += text.count("\n")
        yield text, position


def _records(path: Path) -> Iterator[tuple[str, int]]:
    decoder, left, line = msgspec.json.Decoder(_Record), b"", 0
    for data, position in chain(_bytes(path), [(b"\n", path.stat().st_size)]):
        *rows, left = (left + data).split(b"\n")
        texts = []
        for row in rows:
            line += 1
            row = row.removeprefix(codecs.BOM_UTF8) if line == 1 else row
            if row and not row.isspace():
                texts.append(_document(_record(decoder, row, path, line)))
        if len(left) > LONGEST_RECORD:
            raise BadInput(f"{path}, line {line + 1:,}: more than {LONGEST_RECORD >> 20} MiB in one line; {_JSON_LINES}")
        yield "".join(texts), position


class _Record(msgspec.Struct):
    text: str


_JSON_LINES = """write one object a line: {"text": "..."}"""


def _record(decoder: msgspec.json.Decoder[_Record], row: bytes, path: Path, line: int) -> str:
    try:
        return decoder.decode(row).text
    except UnicodeDecodeError:
        raise _not_utf8(path, f"line {line:,}") from None
    except msgspec.DecodeError as error:
        way_out = f"`jq -c '.[]' {path.name}` makes lines of an array" if row.lstrip()[:1] == b"[" else _JSON_LINES
        raise BadInput(f"{path}, line {line:,} is not an object with a string `text` ({error}); {way_out}") from None


def _document(text: str) -> str:
    """A document that may hold empty lines of its own, ready to stand between others."""
    return _BLANK.sub("\n", _newlines(text)) + "\n\n"


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _parquet(path: Path) -> Iterator[tuple[str, int]]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput(f"{path} needs pyarrow to be read: pip install bertsmith[data]") from None
    row, full = 0, path.stat().st_size
    try:
        with parquet.ParquetFile(path, buffer_size=PIECE, pre_buffer=False) as table:
            names, rows = table.schema_arrow.names, table.metadata.num_rows
            if "text" not in names:
                raise BadInput(f"{path} has no column `text`, only: {', '.join(names)}; rename the one with the documents")
            for batch in table.iter_batches(batch_size=128, columns=["text"]):
                texts = batch.column(0).to_pylist()
                for number, text in enumerate(texts, row + 1):
                    if not isinstance(text, str):
                        raise BadInput(f"{path}, row {number:,}: `text` is {text!r}, not a string; filter such rows out")
                row += len(texts)
                yield "".join(map(_document, texts)), full * row // rows
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as parquet: {error}; is it whole?") from None


def _bytes(path: Path) -> Iterator[tuple[bytes, int]]:
    """Unpacked pieces, and the bytes of the file on disk read so far."""
    seen = 0
    try:
        with path.open("rb") as raw:
            for data in _unpacked(path, raw):
                if seen < PIECE:
                    _refuse_binary(path, data, first=not seen)
                seen += len(data)
                yield data, raw.tell()
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from None
        kind = path.suffix.lower()
        raise BadInput(f"{path} is truncated, damaged or no {kind} file ({error}); fetch or pack it again") from None


def _unpacked(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    ending = path.suffix.lower()
    if ending == ".zst":
        yield from _zstandard(path, raw)
        return
    opened: dict[str, Callable[[BinaryIO], BinaryIO]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}  # type: ignore[dict-item]
    file = opened[ending](raw) if ending in opened else raw
    while data := file.read(PIECE):
        yield data


def _zstandard(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    """Not the library's own stream reader: that one takes a truncated file for a whole one."""
    try:
        import zstandard
    except ImportError:
        raise BadInput(f"{path} needs zstandard to be read: pip install bertsmith[data]") from None
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    try:
        while packed := raw.read(1 << 14):  # little, for it may unpack to a thousand times as much
            while packed:
                frame = unpacker.decompressobj() if frame is None or frame.eof else frame
                data = frame.decompress(packed)
                yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))
                packed = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if frame is not None and not frame.eof:
        raise EOFError("it ends inside a frame")


def _refuse_binary(path: Path, data: bytes, first: bool) -> None:
    if first and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise BadInput(f"{path} is UTF-16, not UTF-8; convert it: iconv -f utf-16 -t utf-8 {path.name} > new.txt")
    if b"\0" in data or len(data) - len(data.translate(None, _CONTROL)) > 32 + len(data) // 10:
        raise BadInput(
            f"{path} looks like a binary file, not text; give UTF-8 text, or name it after its format (.gz, .xz, ...)"
        )


def _not_utf8(path: Path, place: str, byte: int | None = None) -> BadInput:
    value = "" if byte is None else f" (0x{byte:02x})"
    return BadInput(
        f"{path} is not UTF-8 at {place}{value}; convert it: `iconv -f gb18030 -t utf-8` if it is Chinese, "
        f"`iconv -f latin-1 -t utf-8` if it is Western"
    )


def _format(path: Path) -> str:
    if kind := _known(path):
        return kind
    raise BadInput(f"{path} has an ending that is not known; known: {_KNOWN}")


def _known(path: Path) -> str:
    ending = path.suffix.lower()
    if ending == ".parquet":
        return "parquet"
    if ending in _PACKED:
        ending = Path(path.stem).suffix.lower()
    number = ending[1:].isdigit()  # shard.001 is as good as no ending
    return "text" if ending in _TEXT or number else "lines" if ending in _LINES else ""


def _named(text: str) -> list[Path]:
    path = Path(text).expanduser()
    if path.is_dir():
        return _inside(path)
    if not path.exists() and glob.has_magic(text):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise BadInput(f"no file matches {text}")
        return [found for match in matches for found in (_inside(match) if match.is_dir() else [_readable(match)])]
    return [_readable(path)]


def _inside(folder: Path) -> list[Path]:
    seen = [path for path in sorted(folder.rglob("*")) if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    if readable := [path for path in seen if path.is_file() and _known(path)]:
        return readable
    raise BadInput(f"{folder} holds no file that can be read as text; known endings: {_KNOWN}")


def _readable(path: Path) -> Path:
    if not path.exists():
        raise BadInput(_missing(path))
    if not path.is_file():
        raise BadInput(f"{path} is not a file that can be read twice; write the text to a file first")
    _format(path)
    return path


def _missing(path: Path) -> str:
    """Names the first part of the path that is not there, and what its folder holds instead."""
    part = next(part for part in (*reversed(path.parents), path) if not part.exists())
    names = sorted(entry.name for entry in part.parent.iterdir()) if part.parent.is_dir() else []
    near = get_close_matches(part.name, names, n=1, cutoff=0.5)
    return f"there is no {part}; " + (f"did you mean {part.parent / near[0]}?" if near else f"look in {part.parent.absolute()}")
