"""Text files, packed or not, as one stream of documents in blocks of a few million characters, in constant memory."""

import codecs
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import BadInput
from .files import PIECE, format_of, unpacked
from .tables import Fault, Lines, missing, records
from .tokenizer import whole

LONGEST_GAP = 2 << 20  # white space in one line beyond this is dropped; at least a piece, so that pieces leave no trace
LONGEST_RECORD = 256 << 20  # bytes of one JSON line, which has to be in memory whole

_BLANK = re.compile(r"\n\s*\n")
_LINE_END = re.compile(rb"\r\n?|\n")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_AFTER_FORCED_CUT = re.compile(r"[^\S\n]*(\n{0,2})")


@dataclass(frozen=True)
class Block:
    """Lines parted by a newline, documents by an empty line; no other empty line, no carriage return."""

    text: str
    before: str  # the last character before the space that parts it from the block before, if a document goes on from there
    ends: bool  # the last document is complete; if not, it goes on in the next block
    read: int  # bytes of the files, as they lie on disk, read so far: for progress
    source: str  # the file of the first line


@dataclass(frozen=True)
class Reading:
    """Which column of tables and JSON holds the documents, and what is wrong with a text, where some cannot be used."""

    column: str = "text"
    fault: Callable[[str], str | None] | None = None

    def check(self, text: str, path: Path, place: str) -> str:
        if self.fault and (wrong := self.fault(text)):
            raise BadInput(f"{path}, {place}: {wrong}; mend it, or leave it out")
        return text


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


def blocks(paths: Sequence[Path], size: int = 4 << 20, reading: Reading = Reading()) -> Iterator[Block]:  # noqa: B008
    """Blocks of at most `size` characters, the same for the same files; the end of a file ends a document.

    They are cut between documents; a document longer than `size` between its lines, a longer line at a space.
    """
    text, base, files = "", 0, deque[tuple[int, str]]()  # `base`: where in the whole stream `text` begins
    before = ""
    for piece in _tidied(paths, reading):
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
                yield Block(block, before, ends, piece.read, files[0][1])
            at, before = following, "" if ends or following == end else text[end - 1]
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


def _tidied(paths: Sequence[Path], reading: Reading) -> Iterator[_Piece]:
    """The stream of all files without its empty lines but one between documents, wherever the pieces were cut.

    White space at the end of a piece waits for the next one, which decides what it means.
    """
    held, done, path = "\n", 0, None
    for path in paths:
        for raw, read in _pieces(path, reading):
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


def _pieces(path: Path, reading: Reading) -> Iterator[tuple[str, int]]:
    """Text with newlines only, and the bytes of the file read so far."""
    text_of = _checked if reading.fault else _text
    read = {"parquet": _parquet, "table": _rows, "lines": _records, "text": text_of}[format_of(path)]
    empty = True
    for text, position in read(path, reading):
        empty = empty and (not text or text.isspace())
        yield text, position
    if empty:
        raise BadInput(f"{path} is empty: there is no text in it; leave it out, or make it again")


def _text(path: Path, reading: Reading) -> Iterator[tuple[str, int]]:
    left, carriage, offset, line = b"", "", 0, 1
    for data, position in chain(unpacked(path), [(b"", path.stat().st_size)]):
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


def _checked(path: Path, reading: Reading) -> Iterator[tuple[str, int]]:
    """A line at a time, so that a bad one can be named."""
    for number, text in (lines := Lines(path)):
        yield reading.check(text, path, f"line {number:,}") + "\n", lines.read


def _rows(path: Path, reading: Reading) -> Iterator[tuple[str, int]]:
    """A document a row."""
    for row in records(lines := Lines(path)):
        place = f"line {row.line:,}"
        if isinstance(row, Fault):
            raise BadInput(f"{path}, {place}: {row.what}; mend the row, or leave it out")
        if reading.column not in row.values:
            raise BadInput(f"{path} {missing(reading.column, list(row.values), 'column')}")
        yield _document(reading.check(row.values[reading.column], path, place)), lines.read


def _records(path: Path, reading: Reading) -> Iterator[tuple[str, int]]:
    decoder, left, line = msgspec.json.Decoder(_record_with(reading.column)), b"", 0
    for data, position in chain(unpacked(path), [(b"\n", path.stat().st_size)]):
        *rows, left = (left + data).split(b"\n")
        texts = []
        for row in rows:
            line += 1
            row = row.removeprefix(codecs.BOM_UTF8) if line == 1 else row
            if row and not row.isspace():
                text = _record(decoder, row, path, line, reading.column)
                texts.append(_document(reading.check(text, path, f"line {line:,}")))
        if len(left) > LONGEST_RECORD:
            raise BadInput(f"{path}, line {line + 1:,}: more than {LONGEST_RECORD >> 20} MiB in one line; "
                           f"{_json_lines(reading.column)}")  # fmt: skip
        yield "".join(texts), position


def _record_with(column: str) -> type[Any]:
    return msgspec.defstruct("Record", [("text", str, msgspec.field(name=column))])


def _json_lines(column: str) -> str:
    return f"""write one object a line: {{"{column}": "..."}}"""


def _record(decoder: msgspec.json.Decoder[Any], row: bytes, path: Path, line: int, column: str) -> str:
    try:
        return decoder.decode(row).text
    except UnicodeDecodeError:
        raise _not_utf8(path, f"line {line:,}") from None
    except msgspec.DecodeError as error:
        if (text := _mended(row, decoder.type)) is not None:
            return text
        way_out = f"`jq -c '.[]' {path.name}` makes lines of an array" if row.lstrip()[:1] == b"[" else _json_lines(column)
        raise BadInput(f"{path}, line {line:,} is not an object with a string `{column}` ({error}); {way_out}") from None


def _mended(row: bytes, kind: Any) -> str | None:
    """The text of a record with lone surrogates ("\\ud83d", half an emoji), which become U+FFFD; None for any other fault."""
    if not _SURROGATE.search(row):
        return None
    try:
        return whole(msgspec.convert(json.loads(row), kind).text)
    except (ValueError, RecursionError):
        return None


def _document(text: str) -> str:
    """A document that may hold empty lines of its own, ready to stand between others."""
    return _BLANK.sub("\n", _newlines(text)) + "\n\n"


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _parquet(path: Path, reading: Reading) -> Iterator[tuple[str, int]]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput(f"{path} needs pyarrow to be read: pip install bertsmith[data]") from None
    row, full = 0, path.stat().st_size
    try:
        with parquet.ParquetFile(path, buffer_size=PIECE, pre_buffer=False) as table:
            names, rows = table.schema_arrow.names, table.metadata.num_rows
            if reading.column not in names:
                raise BadInput(f"{path} {missing(reading.column, names, 'column')}")
            for batch in table.iter_batches(batch_size=128, columns=[reading.column]):
                texts = batch.column(0).to_pylist()
                for number, text in enumerate(texts, row + 1):
                    if not isinstance(text, str):
                        raise BadInput(f"{path}, row {number:,}: `{reading.column}` is {text!r}, not a string; filter such "
                                       "rows out")  # fmt: skip
                    reading.check(text, path, f"row {number:,}")
                row += len(texts)
                yield "".join(map(_document, texts)), full * row // rows
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as parquet: {error}; is it whole?") from None


def _not_utf8(path: Path, place: str, byte: int | None = None) -> BadInput:
    value = "" if byte is None else f" (0x{byte:02x})"
    return BadInput(
        f"{path} is not UTF-8 at {place}{value}; convert it: `iconv -f gb18030 -t utf-8` if it is Chinese, "
        f"`iconv -f latin-1 -t utf-8` if it is Western"
    )
