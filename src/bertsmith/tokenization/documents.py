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

from ..errors import UserError
from .files import CHUNK_BYTES, detect_format, read_decompressed
from .tables import InvalidRecord, LineReader, missing_column_message, read_records
from .tokenizer import replace_surrogates

MAX_WHITESPACE = 2 << 20  # white space in one line beyond this is dropped; at least a piece, so that pieces leave no trace
MAX_RECORD_BYTES = 256 << 20  # bytes of one JSON line, which has to be in memory whole

_BLANK_LINES = re.compile(r"\n\s*\n")
_LINE_END = re.compile(rb"\r\n?|\n")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SKIPPED_AFTER_SPLIT = re.compile(r"[^\S\n]*(\n{0,2})")


@dataclass(frozen=True)
class TextBlock:
    """Lines parted by a newline, documents by an empty line; no other empty line, no carriage return."""

    text: str
    previous_char: (
        str  # the last character before the space that parts it from the block before, if a document goes on from there
    )
    ends_document: bool  # the last document is complete; if not, it goes on in the next block
    bytes_read: int  # bytes of the files, as they lie on disk, read so far: for progress
    source: str  # the file of the first line


@dataclass(frozen=True)
class ReadOptions:
    """Which column of tables and JSON holds the documents, and what is wrong with a text, where some cannot be used."""

    column: str = "text"
    find_error: Callable[[str], str | None] | None = None

    def check(self, text: str, path: Path, location: str) -> str:
        if self.find_error and (wrong := self.find_error(text)):
            raise UserError(f"{path}, {location}: {wrong}; mend it, or leave it out")
        return text


def read_documents(paths: Sequence[Path]) -> Iterator[list[str]]:
    """The lines of each document; a document is in memory whole, so corpora of any size are better read by `blocks`."""
    lines: list[str] = []
    for block in read_blocks(paths):
        *whole, last = block.text.split("\n\n")
        for document in whole:
            yield lines + document.split("\n")
            lines = []
        lines += last.split("\n")
        if block.ends_document:
            yield lines
            lines = []


def read_blocks(paths: Sequence[Path], max_chars: int = 4 << 20, options: ReadOptions = ReadOptions()) -> Iterator[TextBlock]:  # noqa: B008
    """Blocks of at most `size` characters, the same for the same files; the end of a file ends a document.

    They are cut between documents; a document longer than `size` between its lines, a longer line at a space.
    """
    text, base, files = "", 0, deque[tuple[int, str]]()  # `base`: where in the whole stream `text` begins
    before = ""
    for piece in _read_normalized(paths, options):
        gap = piece.whitespace if text else piece.whitespace.lstrip("\n")
        if not files or files[-1][1] != piece.source:
            files.append((base + len(text) + gap.rfind("\n") + 1, piece.source))
        text += gap + piece.body
        at, waiting = 0, max_chars if piece.body else 0
        while len(text) - at > waiting:
            end, ends, following = _split_block(text, at, max_chars)
            while len(files) > 1 and files[1][0] <= base + at:
                files.popleft()
            if not (block := text[at:end]).isspace():  # it is where a line begins with more white space than a block holds
                yield TextBlock(block, before, ends, piece.bytes_read, files[0][1])
            at, before = following, "" if ends or following == end else text[end - 1]
        text, base = text[at:], base + at


def _split_block(text: str, start: int, max_chars: int) -> tuple[int, bool, int]:
    """Where the block that begins at `at` ends, whether that ends a document, and where the next block begins."""
    for mark, ends in (("\n\n", True), ("\n", False)):
        end = text.rfind(mark, start, start + max_chars + len(mark))
        if end > start:
            return end, ends, end + len(mark)
    end = text.rfind(" ", start, start + max_chars + 1)
    if end <= start or text[start:end].isspace():
        end = start + max_chars
    skipped = _SKIPPED_AFTER_SPLIT.match(text, end)
    assert skipped
    return end, skipped[1] == "\n\n", skipped.end()


class _Chunk(NamedTuple):
    whitespace: str  # white space before the body
    body: str  # begins and ends with something to see; empty at the end of the stream
    bytes_read: int
    source: str


def _read_normalized(paths: Sequence[Path], options: ReadOptions) -> Iterator[_Chunk]:
    """The stream of all files without its empty lines but one between documents, wherever the pieces were cut.

    White space at the end of a piece waits for the next one, which decides what it means.
    """
    held, done, path = "\n", 0, None
    for path in paths:
        for raw, read in _read_chunks(path, options):
            whole = raw.rstrip()
            body = whole.lstrip()
            if not body:
                held = _collapse_whitespace(held + raw)
                continue
            gap = _collapse_whitespace(held + whole[: len(whole) - len(body)])
            held = _collapse_whitespace(raw[len(whole) :])
            yield _Chunk(gap, _BLANK_LINES.sub("\n\n", body), done + read, str(path))
        held, done = _collapse_whitespace(held + "\n\n"), done + path.stat().st_size
    if path:
        yield _Chunk(held.partition("\n")[0] + "\n\n", "", done, str(path))


def _collapse_whitespace(whitespace: str) -> str:
    whitespace = _BLANK_LINES.sub("\n\n", whitespace)
    return (
        whitespace if len(whitespace) <= MAX_WHITESPACE else "\n".join(part[:MAX_WHITESPACE] for part in whitespace.split("\n"))
    )


def _read_chunks(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    """Text with newlines only, and the bytes of the file read so far."""
    text_of = _read_checked_lines if options.find_error else _read_text
    read = {"parquet": _read_parquet, "table": _read_table, "lines": _read_json_lines, "text": text_of}[detect_format(path)]
    empty = True
    for text, position in read(path, options):
        empty = empty and (not text or text.isspace())
        yield text, position
    if empty:
        raise UserError(f"{path} is empty: there is no text in it; leave it out, or make it again")


def _read_text(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    left, carriage, offset, line = b"", "", 0, 1
    for data, position in chain(read_decompressed(path), [(b"", path.stat().st_size)]):
        joined = left + data
        try:
            text, used = codecs.utf_8_decode(joined, "strict", not data)
        except UnicodeDecodeError as error:
            line += len(_LINE_END.findall(carriage.encode() + joined[: error.start]))
            raise _utf8_error(path, f"byte {offset + error.start:,} (line {line:,})", joined[error.start]) from None
        text = carriage + (text if offset else text.removeprefix("\ufeff"))
        left, offset = joined[used:], offset + used
        text, carriage = (text[:-1], "\r") if text.endswith("\r") else (text, "")  # half of a line end, perhaps
        text = _normalize_newlines(text)
        line += text.count("\n")
        yield text, position


def _read_checked_lines(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    """A line at a time, so that a bad one can be named."""
    for number, text in (lines := LineReader(path)):
        yield options.check(text, path, f"line {number:,}") + "\n", lines.bytes_read


def _read_table(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    """A document a row."""
    for row in read_records(lines := LineReader(path)):
        place = f"line {row.line:,}"
        if isinstance(row, InvalidRecord):
            raise UserError(f"{path}, {place}: {row.message}; mend the row, or leave it out")
        if options.column not in row.values:
            raise UserError(f"{path} {missing_column_message(options.column, list(row.values), 'column')}")
        yield _format_document(options.check(row.values[options.column], path, place)), lines.bytes_read


def _read_json_lines(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    decoder, left, line = msgspec.json.Decoder(_record_type(options.column)), b"", 0
    for data, position in chain(read_decompressed(path), [(b"\n", path.stat().st_size)]):
        *rows, left = (left + data).split(b"\n")
        texts = []
        for row in rows:
            line += 1
            row = row.removeprefix(codecs.BOM_UTF8) if line == 1 else row
            if row and not row.isspace():
                text = _decode_record(decoder, row, path, line, options.column)
                texts.append(_format_document(options.check(text, path, f"line {line:,}")))
        if len(left) > MAX_RECORD_BYTES:
            raise UserError(f"{path}, line {line + 1:,}: more than {MAX_RECORD_BYTES >> 20} MiB in one line; "
                           f"{_json_lines_hint(options.column)}")  # fmt: skip
        yield "".join(texts), position


def _record_type(column: str) -> type[Any]:
    return msgspec.defstruct("Record", [("text", str, msgspec.field(name=column))])


def _json_lines_hint(column: str) -> str:
    return f"""write one object a line: {{"{column}": "..."}}"""


def _decode_record(decoder: msgspec.json.Decoder[Any], row: bytes, path: Path, line: int, column: str) -> str:
    try:
        return decoder.decode(row).text
    except UnicodeDecodeError:
        raise _utf8_error(path, f"line {line:,}") from None
    except msgspec.DecodeError as error:
        if (text := _repair_surrogates(row, decoder.type)) is not None:
            return text
        way_out = f"`jq -c '.[]' {path.name}` makes lines of an array" if row.lstrip()[:1] == b"[" else _json_lines_hint(column)
        raise UserError(f"{path}, line {line:,} is not an object with a string `{column}` ({error}); {way_out}") from None


def _repair_surrogates(row: bytes, record_type: Any) -> str | None:
    """The text of a record with lone surrogates ("\\ud83d", half an emoji), which become U+FFFD; None for any other fault."""
    if not _SURROGATE.search(row):
        return None
    try:
        return replace_surrogates(msgspec.convert(json.loads(row), record_type).text)
    except (ValueError, RecursionError):
        return None


def _format_document(text: str) -> str:
    """A document that may hold empty lines of its own, ready to stand between others."""
    return _BLANK_LINES.sub("\n", _normalize_newlines(text)) + "\n\n"


def _normalize_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _read_parquet(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow to be read: pip install bertsmith[data]") from None
    row, full = 0, path.stat().st_size
    try:
        with parquet.ParquetFile(path, buffer_size=CHUNK_BYTES, pre_buffer=False) as table:
            names, rows = table.schema_arrow.names, table.metadata.num_rows
            if options.column not in names:
                raise UserError(f"{path} {missing_column_message(options.column, names, 'column')}")
            for batch in table.iter_batches(batch_size=128, columns=[options.column]):
                texts = batch.column(0).to_pylist()
                for number, text in enumerate(texts, row + 1):
                    if not isinstance(text, str):
                        raise UserError(f"{path}, row {number:,}: `{options.column}` is {text!r}, not a string; filter such "
                                       "rows out")  # fmt: skip
                    options.check(text, path, f"row {number:,}")
                row += len(texts)
                yield "".join(map(_format_document, texts)), full * row // rows
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as parquet: {error}; is it whole?") from None


def _utf8_error(path: Path, location: str, byte: int | None = None) -> UserError:
    value = "" if byte is None else f" (0x{byte:02x})"
    return UserError(
        f"{path} is not UTF-8 at {location}{value}; convert it: `iconv -f gb18030 -t utf-8` if it is Chinese, "
        f"`iconv -f latin-1 -t utf-8` if it is Western"
    )
