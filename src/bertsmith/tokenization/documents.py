"""Reads text files, compressed or not, as one stream of documents in blocks of bounded size, in constant memory."""

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
from .files import detect_format, read_decompressed
from .parquet import ROWS_PER_BATCH, open_parquet
from .tables import UTF8, InvalidRecord, LineReader, missing_column_message, read_records
from .tokenizer import replace_surrogates

# Longer white space in one line is truncated; at least CHUNK_BYTES, so that chunking does not change the result.
MAX_WHITESPACE = 2 << 20
BYTE_ORDER_MARK = "\ufeff"
MAX_RECORD_BYTES = 256 << 20  # of one JSON line, which has to fit into memory

_BLANK_LINES = re.compile(r"\n\s*\n")
_LINE_END = re.compile(rb"\r\n?|\n")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SKIPPED_AFTER_SPLIT = re.compile(r"[^\S\n]*(\n{0,2})")


@dataclass(frozen=True)
class TextBlock:
    """Lines separated by a newline, documents by an empty line; no other empty lines, no carriage returns."""

    text: str
    previous_char: str  # last character of the block before, if this one continues its document after white space; else ""
    ends_document: bool  # the last document is complete; if not, it continues in the next block
    bytes_read: int  # bytes of the files on disk read so far, for progress
    source: str  # the file of the first line


@dataclass(frozen=True)
class ReadOptions:
    """`column` of tables and JSON that holds the documents; `find_error(text)` returns why a text is invalid, or None.

    `encoding` is that of all files but .parquet; byte order marks are no text, at the start and where files were joined.
    """

    column: str = "text"
    find_error: Callable[[str], str | None] | None = None
    encoding: str = UTF8

    def check(self, text: str, path: Path, location: str) -> str:
        if self.find_error and (error := self.find_error(text)):
            raise UserError(f"{path}, {location}: {error}; correct or remove the line")
        return text


def read_blocks(paths: Sequence[Path], max_chars: int = 4 << 20, options: ReadOptions = ReadOptions()) -> Iterator[TextBlock]:  # noqa: B008
    """Yield blocks of at most `max_chars` characters, deterministic for given files; the end of a file ends a document.

    Blocks end between documents; a document longer than `max_chars` is split between lines, a longer line at a space.
    """
    text, stream_offset, files = "", 0, deque[tuple[int, str]]()  # `stream_offset`: position of `text` in the whole stream
    previous_char = ""
    for chunk in _read_normalized(paths, options):
        whitespace = chunk.whitespace if text else chunk.whitespace.lstrip("\n")
        if not files or files[-1][1] != chunk.source:
            files.append((stream_offset + len(text) + whitespace.rfind("\n") + 1, chunk.source))
        text += whitespace + chunk.body
        start, threshold = 0, max_chars if chunk.body else 0
        while len(text) - start > threshold:
            end, ends_document, next_start = _split_block(text, start, max_chars)
            while len(files) > 1 and files[1][0] <= stream_offset + start:
                files.popleft()
            if not (block := text[start:end]).isspace():  # a line may begin with more white space than fits a block
                yield TextBlock(block, previous_char, ends_document, chunk.bytes_read, files[0][1])
            start, previous_char = next_start, "" if ends_document or next_start == end else text[end - 1]
        text, stream_offset = text[start:], stream_offset + start


def _split_block(text: str, start: int, max_chars: int) -> tuple[int, bool, int]:
    """(end of the block that begins at `start`, whether a document ends there, start of the next block)."""
    for separator, ends_document in (("\n\n", True), ("\n", False)):
        end = text.rfind(separator, start, start + max_chars + len(separator))
        if end > start:
            return end, ends_document, end + len(separator)
    end = text.rfind(" ", start, start + max_chars + 1)
    if end <= start or text[start:end].isspace():
        end = start + max_chars
    skipped = _SKIPPED_AFTER_SPLIT.match(text, end)
    assert skipped
    return end, skipped[1] == "\n\n", skipped.end()


class _Chunk(NamedTuple):
    whitespace: str  # white space before the body
    body: str  # begins and ends with a visible character; empty at the end of the stream
    bytes_read: int
    source: str


def _read_normalized(paths: Sequence[Path], options: ReadOptions) -> Iterator[_Chunk]:
    """The text of all files with exactly one empty line between documents, independent of the chunking.

    White space at the end of a chunk is held back until the next chunk shows whether it ends a document.
    """
    pending, finished_bytes, path = "\n", 0, None
    for path in paths:
        for text, bytes_read in _read_chunks(path, options):
            stripped = text.rstrip()
            body = stripped.lstrip()
            if not body:
                pending = _collapse_whitespace(pending + text)
                continue
            whitespace = _collapse_whitespace(pending + stripped[: len(stripped) - len(body)])
            pending = _collapse_whitespace(text[len(stripped) :])
            yield _Chunk(whitespace, _BLANK_LINES.sub("\n\n", body), finished_bytes + bytes_read, str(path))
        pending, finished_bytes = _collapse_whitespace(pending + "\n\n"), finished_bytes + path.stat().st_size
    if path:
        yield _Chunk(pending.partition("\n")[0] + "\n\n", "", finished_bytes, str(path))


def _collapse_whitespace(whitespace: str) -> str:
    whitespace = _BLANK_LINES.sub("\n\n", whitespace)
    return (
        whitespace if len(whitespace) <= MAX_WHITESPACE else "\n".join(part[:MAX_WHITESPACE] for part in whitespace.split("\n"))
    )


def _read_chunks(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    """Yield (text with \\n line ends, bytes of the file on disk read so far)."""
    read_plain_text = _read_checked_lines if options.find_error else _read_text
    reader = {"parquet": _read_parquet, "table": _read_table, "lines": _read_json_lines, "text": read_plain_text}[
        detect_format(path)
    ]
    is_empty = True
    for text, bytes_read in reader(path, options):
        is_empty = is_empty and (not text or text.isspace())
        yield text, bytes_read
    if is_empty:
        raise UserError(f"{path} contains no text; leave it out of texts, or write it again")


def _read_text(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    remainder, pending_cr, offset, line = b"", "", 0, 1
    for data, bytes_read in chain(_read_utf8(path, options.encoding), [(b"", path.stat().st_size)]):
        pending_bytes = remainder + data
        try:
            text, num_decoded = codecs.utf_8_decode(pending_bytes, "strict", not data)
        except UnicodeDecodeError as error:
            line += len(_LINE_END.findall(pending_cr.encode() + pending_bytes[: error.start]))
            raise _utf8_error(path, f"byte {offset + error.start:,} (line {line:,})", pending_bytes[error.start]) from None
        text = pending_cr + text.replace(BYTE_ORDER_MARK, "")  # at the start, and where files were joined
        remainder, offset = pending_bytes[num_decoded:], offset + num_decoded
        text, pending_cr = (text[:-1], "\r") if text.endswith("\r") else (text, "")  # perhaps the first half of \r\n
        text = _normalize_newlines(text)
        line += text.count("\n")
        yield text, bytes_read


def _read_checked_lines(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    """One line at a time, so that an invalid line can be reported by number."""
    for line, text in (lines := LineReader(path, options.encoding)):
        if error := lines.find_decoding_error(text):
            raise UserError(f"{path}, line {line:,}: {error}; correct or remove the line")
        yield options.check(text, path, f"line {line:,}") + "\n", lines.bytes_read


def _read_table(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    """One document per row."""
    for row in read_records(lines := LineReader(path, options.encoding)):
        location = f"line {row.line:,}"
        if isinstance(row, InvalidRecord):
            raise UserError(f"{path}, {location}: {row.message}; correct or remove the row")
        if options.column not in row.values:
            raise UserError(f"{path} {missing_column_message(options.column, list(row.values), 'column')}")
        yield _format_document(options.check(row.values[options.column], path, location)), lines.bytes_read


def _read_json_lines(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    decoder, remainder, line = msgspec.json.Decoder(_record_type(options.column)), b"", 0
    for data, bytes_read in chain(_read_utf8(path, options.encoding), [(b"\n", path.stat().st_size)]):
        *rows, remainder = (remainder + data).split(b"\n")
        texts = []
        for row in rows:
            line += 1
            row = row.removeprefix(codecs.BOM_UTF8)
            if row and not row.isspace():
                text = _decode_record(decoder, row, path, line, options.column)
                texts.append(_format_document(options.check(text, path, f"line {line:,}")))
        if len(remainder) > MAX_RECORD_BYTES:
            raise UserError(f"{path}, line {line + 1:,}: the line is longer than {MAX_RECORD_BYTES >> 20} MiB; "
                           f"{_json_lines_hint(options.column)}")  # fmt: skip
        yield "".join(texts), bytes_read


def _record_type(column: str) -> type[Any]:
    return msgspec.defstruct("Record", [("text", str, msgspec.field(name=column))])


def _json_lines_hint(column: str) -> str:
    return f"""write one JSON object per line: {{"{column}": "..."}}"""


def _decode_record(decoder: msgspec.json.Decoder[Any], row: bytes, path: Path, line: int, column: str) -> str:
    try:
        return decoder.decode(row).text
    except UnicodeDecodeError:
        raise _utf8_error(path, f"line {line:,}") from None
    except msgspec.DecodeError as error:
        if (text := _repair_surrogates(row, decoder.type)) is not None:
            return text
        hint = (
            f"`jq -c '.[]' {path.name}` converts an array to JSON lines"
            if row.lstrip()[:1] == b"["
            else _json_lines_hint(column)
        )
        raise UserError(
            f"{path}, line {line:,} is not a JSON object with a string field `{column}` ({error}); {hint}"
        ) from None


def _repair_surrogates(row: bytes, record_type: Any) -> str | None:
    """The text of a record with lone surrogates ("\\ud83d", half an emoji) replaced by U+FFFD; None for other errors."""
    if not _SURROGATE.search(row):
        return None
    try:
        return replace_surrogates(msgspec.convert(json.loads(row), record_type).text)
    except (ValueError, RecursionError):
        return None


def _format_document(text: str) -> str:
    """A document without empty lines inside, followed by the empty line that separates documents."""
    return _BLANK_LINES.sub("\n", _normalize_newlines(text)) + "\n\n"


def _normalize_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _read_parquet(path: Path, options: ReadOptions) -> Iterator[tuple[str, int]]:
    rows_read, file_size = 0, path.stat().st_size
    with open_parquet(path) as table:
        names, num_rows = table.schema_arrow.names, table.metadata.num_rows
        if options.column not in names:
            raise UserError(f"{path} {missing_column_message(options.column, names, 'column')}")
        for batch in table.iter_batches(batch_size=ROWS_PER_BATCH, columns=[options.column]):
            texts = batch.column(0).to_pylist()
            for row, text in enumerate(texts, rows_read + 1):
                if not isinstance(text, str):
                    raise UserError(f"{path}, row {row:,}: `{options.column}` is {text!r}, not a string; remove "
                                   "such rows")  # fmt: skip
                options.check(text, path, f"row {row:,}")
            rows_read += len(texts)
            yield "".join(map(_format_document, texts)), file_size * rows_read // num_rows


def _read_utf8(path: Path, encoding: str) -> Iterator[tuple[bytes, int]]:
    """(chunk in UTF-8, bytes of the file on disk read so far) of a file in any encoding."""
    if encoding == UTF8:
        yield from read_decompressed(path)
        return
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    chunks = read_decompressed(path, is_wide=encoding.startswith(("utf-16", "utf-32")))
    for data, bytes_read in chain(chunks, [(b"", path.stat().st_size)]):
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].decode(encoding, "ignore").count("\n")
            raise UserError(f"{path} is not {encoding.upper()} at line {line:,} ({error.reason}); set encoding to that of the "
                           "file, such as utf-8, gb18030 or latin-1") from None  # fmt: skip
        line += text.count("\n")
        yield text.encode(UTF8, "surrogatepass"), bytes_read


def _utf8_error(path: Path, location: str, byte: int | None = None) -> UserError:
    value = "" if byte is None else f" (0x{byte:02x})"
    return UserError(
        f"{path} is not UTF-8 at {location}{value}; set its encoding, such as encoding=gb18030 (Chinese) or "
        "encoding=latin-1 (Western European)"
    )
