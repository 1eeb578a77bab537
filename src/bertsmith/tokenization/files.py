"""Files of text: which ones are meant, what format each is in, and their bytes unpacked."""

import bz2
import codecs
import glob
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from ..errors import UserError

CHUNK_BYTES = 1 << 20  # bytes unpacked at a time

_TEXT_SUFFIXES, _JSON_LINES_SUFFIXES, _COMPRESSED_SUFFIXES = (
    {"", ".txt", ".text", ".md"},
    {".jsonl", ".ndjson", ".json"},
    {".gz", ".xz", ".bz2", ".zst"},
)
_TABLE_SUFFIXES = {".tsv", ".csv"}
_SUPPORTED_FORMATS = (
    ".txt .text .md (or none), .jsonl .ndjson .json and .tsv .csv, alone or packed (.gz .xz .bz2 .zst); .parquet"
)
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))


def find_files(patterns: Sequence[str]) -> list[Path]:
    """The files that paths, folders (what can be read in them, sorted) and patterns such as `*.txt.gz` name, each once.

    Tables are taken where they are named, not out of folders: most of what lies beside texts is no text.
    """
    if not all(patterns) or not patterns:
        raise UserError("no texts are given; name files, folders or patterns, such as texts=wiki/*.txt.gz")
    return list(dict.fromkeys(path for text in patterns for path in _expand_pattern(text)))


def total_bytes(paths: Sequence[Path]) -> int:
    """Bytes on disk."""
    return sum(path.stat().st_size for path in paths)


def detect_format(path: Path) -> str:
    if kind := _format_from_suffix(path):
        return kind
    raise UserError(f"{path} has an ending that is not known; known: {_SUPPORTED_FORMATS}")


def read_decompressed(path: Path) -> Iterator[tuple[bytes, int]]:
    """Unpacked pieces, and the bytes of the file on disk read so far."""
    seen = 0
    try:
        with path.open("rb") as raw:
            for data in _decompress(path, raw):
                if seen < CHUNK_BYTES:
                    _refuse_binary(path, data, is_first=not seen)
                seen += len(data)
                yield data, raw.tell()
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        kind = path.suffix.lower()
        raise UserError(f"{path} is truncated, damaged or no {kind} file ({error}); fetch or pack it again") from None


def _decompress(path: Path, raw_file: BinaryIO) -> Iterator[bytes]:
    ending = path.suffix.lower()
    if ending == ".zst":
        yield from _decompress_zstd(path, raw_file)
        return
    opened: dict[str, Callable[[BinaryIO], BinaryIO]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}  # type: ignore[dict-item]
    file = opened[ending](raw_file) if ending in opened else raw_file
    while data := file.read(CHUNK_BYTES):
        yield data


def _decompress_zstd(path: Path, raw_file: BinaryIO) -> Iterator[bytes]:
    """Not the library's own stream reader: that one takes a truncated file for a whole one."""
    try:
        import zstandard
    except ImportError:
        raise UserError(f"{path} needs zstandard to be read: pip install bertsmith[data]") from None
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    try:
        while packed := raw_file.read(1 << 14):  # little, for it may unpack to a thousand times as much
            while packed:
                frame = unpacker.decompressobj() if frame is None or frame.eof else frame
                data = frame.decompress(packed)
                yield from (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
                packed = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if frame is not None and not frame.eof:
        raise EOFError("it ends inside a frame")


def _refuse_binary(path: Path, data: bytes, is_first: bool) -> None:
    if is_first and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UserError(f"{path} is UTF-16, not UTF-8; convert it: iconv -f utf-16 -t utf-8 {path.name} > new.txt")
    if b"\0" in data or len(data) - len(data.translate(None, _CONTROL_BYTES)) > 32 + len(data) // 10:
        raise UserError(
            f"{path} looks like a binary file, not text; give UTF-8 text, or name it after its format (.gz, .xz, ...)"
        )


def _format_from_suffix(path: Path) -> str:
    ending = path.suffix.lower()
    if ending == ".parquet":
        return "parquet"
    if ending in _COMPRESSED_SUFFIXES:
        ending = Path(path.stem).suffix.lower()
    number = ending[1:].isdigit()  # shard.001 is as good as no ending
    if ending in _TABLE_SUFFIXES:
        return "table"
    return "text" if ending in _TEXT_SUFFIXES or number else "lines" if ending in _JSON_LINES_SUFFIXES else ""


def _expand_pattern(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        return _list_folder(path)
    if not path.exists() and glob.has_magic(pattern):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise UserError(f"no file matches {pattern}")
        return [found for match in matches for found in (_list_folder(match) if match.is_dir() else [_check_readable(match)])]
    return [_check_readable(path)]


def _list_folder(folder: Path) -> list[Path]:
    seen = [path for path in sorted(folder.rglob("*")) if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    if readable := [path for path in seen if path.is_file() and _format_from_suffix(path) not in ("", "table")]:
        return readable
    raise UserError(f"{folder} holds no file that can be read as text; known endings: {_SUPPORTED_FORMATS}")


def _check_readable(path: Path) -> Path:
    if not path.exists():
        raise UserError(_missing_path_message(path))
    if not path.is_file():
        raise UserError(f"{path} is not a file that can be read twice; write the text to a file first")
    detect_format(path)
    return path


def _missing_path_message(path: Path) -> str:
    """Names the first part of the path that is not there, and what its folder holds instead."""
    part = next(part for part in (*reversed(path.parents), path) if not part.exists())
    names = sorted(entry.name for entry in part.parent.iterdir()) if part.parent.is_dir() else []
    near = get_close_matches(part.name, names, n=1, cutoff=0.5)
    return f"there is no {part}; " + (f"did you mean {part.parent / near[0]}?" if near else f"look in {part.parent.absolute()}")
