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

from ..errors import BadInput

PIECE = 1 << 20  # bytes unpacked at a time

_TEXT, _LINES, _PACKED = {"", ".txt", ".text", ".md"}, {".jsonl", ".ndjson", ".json"}, {".gz", ".xz", ".bz2", ".zst"}
_TABLES = {".tsv", ".csv"}
_KNOWN = ".txt .text .md (or none), .jsonl .ndjson .json and .tsv .csv, alone or packed (.gz .xz .bz2 .zst); .parquet"
_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))


def found(texts: Sequence[str]) -> list[Path]:
    """The files that paths, folders (what can be read in them, sorted) and patterns such as `*.txt.gz` name, each once.

    Tables are taken where they are named, not out of folders: most of what lies beside texts is no text.
    """
    if not all(texts) or not texts:
        raise BadInput("no texts are given; name files, folders or patterns, such as texts=wiki/*.txt.gz")
    return list(dict.fromkeys(path for text in texts for path in _named(text)))


def size(paths: Sequence[Path]) -> int:
    """Bytes on disk."""
    return sum(path.stat().st_size for path in paths)


def format_of(path: Path) -> str:
    if kind := _known(path):
        return kind
    raise BadInput(f"{path} has an ending that is not known; known: {_KNOWN}")


def unpacked(path: Path) -> Iterator[tuple[bytes, int]]:
    """Unpacked pieces, and the bytes of the file on disk read so far."""
    seen = 0
    try:
        with path.open("rb") as raw:
            for data in _opened(path, raw):
                if seen < PIECE:
                    _refuse_binary(path, data, first=not seen)
                seen += len(data)
                yield data, raw.tell()
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from None
        kind = path.suffix.lower()
        raise BadInput(f"{path} is truncated, damaged or no {kind} file ({error}); fetch or pack it again") from None


def _opened(path: Path, raw: BinaryIO) -> Iterator[bytes]:
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


def _known(path: Path) -> str:
    ending = path.suffix.lower()
    if ending == ".parquet":
        return "parquet"
    if ending in _PACKED:
        ending = Path(path.stem).suffix.lower()
    number = ending[1:].isdigit()  # shard.001 is as good as no ending
    if ending in _TABLES:
        return "table"
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
    if readable := [path for path in seen if path.is_file() and _known(path) not in ("", "table")]:
        return readable
    raise BadInput(f"{folder} holds no file that can be read as text; known endings: {_KNOWN}")


def _readable(path: Path) -> Path:
    if not path.exists():
        raise BadInput(_missing(path))
    if not path.is_file():
        raise BadInput(f"{path} is not a file that can be read twice; write the text to a file first")
    format_of(path)
    return path


def _missing(path: Path) -> str:
    """Names the first part of the path that is not there, and what its folder holds instead."""
    part = next(part for part in (*reversed(path.parents), path) if not part.exists())
    names = sorted(entry.name for entry in part.parent.iterdir()) if part.parent.is_dir() else []
    near = get_close_matches(part.name, names, n=1, cutoff=0.5)
    return f"there is no {part}; " + (f"did you mean {part.parent / near[0]}?" if near else f"look in {part.parent.absolute()}")
